/* Columns of records encoded into batches: what `send_table` and `send_many` do for each record.

`encode_rows` writes one batch with its header, but for the CRC. Where this is not compiled numba does the same work
(`rayka/storage/columns/rows.py`). Other threads run meanwhile: nothing may change the columns or the batch. */

#include "native_records.h"

enum { LENGTH_AT = 8, LEADER_EPOCH_AT = 12, MAGIC_AT = 16, LAST_DELTA_AT = 23,
       BASE_TIMESTAMP_AT = 27, MAX_TIMESTAMP_AT = 35, PRODUCER_AT = 43, COUNT_AT = 57,
       LOG_OVERHEAD = 12, MAGIC = 2 };

/* Big-endian numbers */

static inline void put_int64(uint8_t *at, int64_t number)
{
    for (int byte = 7; byte >= 0; byte--, number >>= 8)
        at[byte] = (uint8_t)number;
}

static inline void put_int32(uint8_t *at, int64_t number)
{
    for (int byte = 3; byte >= 0; byte--, number >>= 8)
        at[byte] = (uint8_t)number;
}

#define CACHE_LINE 64
#define MOST_PREFETCHED 1024
#define PREFETCHED_ROWS 3

/* Columns. `data` is at [0], what says where in it the fields are at [1], and their lengths, -1 for null, at [2]. */

enum { KEYS = 0, VALUES = 3, HEADER_ROWS = 6, HEADER_KEYS = 7, HEADER_VALUES = 10, TIMESTAMPS = 13, COLUMNS = 14 };

static inline int64_t number_at(const Py_buffer *columns, int column, Py_ssize_t row)
{
    int64_t number;             /* a column may begin at any address */
    memcpy(&number, (const char *)columns[column].buf + row * 8, sizeof(number));
    return number;
}

/* A field of a row, or false if it is not inside of the column. */
static inline int field_at(const Py_buffer *columns, int first, Py_ssize_t row, Field *field)
{
    int64_t length = number_at(columns, first + 2, row);
    *field = (Field){"", -1};
    if (length < 0)
        return 1;
    int64_t position = number_at(columns, first + 1, row);
    if (position < 0 || length > columns[first].len || position > columns[first].len - length)
        return 0;
    *field = (Field){(const char *)columns[first].buf + position, (Py_ssize_t)length};
    return 1;
}

typedef struct {
    const Py_buffer *columns;
    uint8_t *batch, *at, *end;  /* the batch, where the next record begins, and where its memory ends */
    Py_ssize_t first_row, row, rows;
    int64_t base_timestamp, max_timestamp;
} Encoder;

/* The bytes of a record's headers, with their number; -1 if they are not inside of the columns. */
static Py_ssize_t headers_size(const Encoder *self, int64_t header, int64_t end)
{
    Py_ssize_t headers = self->columns[HEADER_KEYS + 1].len / 8, size = varint_size(zigzag(end - header));
    if (header < 0 || end < header || end > headers)
        return -1;
    for (; header < end; header++) {
        Field key, value;
        if (!field_at(self->columns, HEADER_KEYS, header, &key) || !field_at(self->columns, HEADER_VALUES, header, &value))
            return -1;
        size += field_size(key) + field_size(value);
    }
    return size;
}

/* Let the processor load a value that is copied soon: its own guess ends where a record does. */
static inline void prefetch_value(const Encoder *self, Py_ssize_t row)
{
    Field value;
    if (row >= self->rows || !field_at(self->columns, VALUES, row, &value))
        return;
    for (Py_ssize_t line = 0; line < value.length && line < MOST_PREFETCHED; line += CACHE_LINE)
        __builtin_prefetch(value.bytes + line);
}

/* Encode the next record. 1 if that was done, 0 if there is no room for it, -1 for a field that is not in its column. */
static int encode_row(Encoder *self)
{
    const Py_buffer *columns = self->columns;
    Field key, value;
    int64_t header = number_at(columns, HEADER_ROWS, self->row), last = number_at(columns, HEADER_ROWS, self->row + 1);
    int64_t timestamp = number_at(columns, TIMESTAMPS, self->row);
    Py_ssize_t of_headers = header == last ? 1 : headers_size(self, header, last);
    if (of_headers < 0 || !field_at(columns, KEYS, self->row, &key) || !field_at(columns, VALUES, self->row, &value))
        return -1;
    if (self->row == self->first_row)
        self->base_timestamp = self->max_timestamp = timestamp;
    uint64_t time_delta = zigzag((int64_t)((uint64_t)timestamp - (uint64_t)self->base_timestamp));
    uint64_t offset_delta = zigzag(self->row - self->first_row);
    Py_ssize_t body = 1 + varint_size(time_delta) + varint_size(offset_delta) + field_size(key) + field_size(value)
        + of_headers;
    if (varint_size(zigzag(body)) + body > self->end - self->at)
        return 0;
    prefetch_value(self, self->row + PREFETCHED_ROWS);
    uint8_t *at = put_varint(self->at, zigzag(body));
    *at++ = 0;                  /* attributes */
    at = put_varint(at, time_delta);
    at = put_varint(at, offset_delta);
    at = put_field(at, key);
    at = put_field(at, value);
    at = put_varint(at, zigzag(last - header));
    for (; header < last; header++) {
        field_at(columns, HEADER_KEYS, header, &key);
        field_at(columns, HEADER_VALUES, header, &value);
        at = put_field(put_field(at, key), value);
    }
    self->at = at;
    self->row++;
    if (timestamp > self->max_timestamp)
        self->max_timestamp = timestamp;
    return 1;
}

static void write_header(Encoder *self)
{
    uint8_t *batch = self->batch;
    Py_ssize_t count = self->row - self->first_row;
    memset(batch, 0, BATCH_OVERHEAD);
    put_int32(batch + LENGTH_AT, self->at - batch - LOG_OVERHEAD);
    put_int32(batch + LEADER_EPOCH_AT, -1);
    batch[MAGIC_AT] = MAGIC;
    put_int32(batch + LAST_DELTA_AT, count - 1);
    put_int64(batch + BASE_TIMESTAMP_AT, self->base_timestamp);
    put_int64(batch + MAX_TIMESTAMP_AT, self->max_timestamp);
    memset(batch + PRODUCER_AT, 0xFF, COUNT_AT - PRODUCER_AT);      /* no producer, epoch and sequence: -1 */
    put_int32(batch + COUNT_AT, count);
}

/* Encode records while there is room. False for a field that is not in its column. */
static int encode_batch(Encoder *self)
{
    int encoded = 1;
    while (self->row < self->rows && encoded > 0)
        encoded = encode_row(self);
    if (encoded >= 0 && self->row > self->first_row)
        write_header(self);
    return encoded >= 0;
}

/* Whether the columns have so many rows. */
static int are_whole(const Py_buffer *columns, Py_ssize_t rows)
{
    static const int OF_ROWS[] = {KEYS + 1, KEYS + 2, VALUES + 1, VALUES + 2, TIMESTAMPS};
    for (size_t i = 0; i < sizeof(OF_ROWS) / sizeof(OF_ROWS[0]); i++)
        if (columns[OF_ROWS[i]].len / 8 < rows)
            return 0;
    return columns[HEADER_ROWS].len / 8 > rows && columns[HEADER_KEYS + 1].len == columns[HEADER_KEYS + 2].len
        && columns[HEADER_KEYS + 1].len == columns[HEADER_VALUES + 1].len
        && columns[HEADER_KEYS + 1].len == columns[HEADER_VALUES + 2].len;
}

static PyObject *encode_into(const Py_buffer *columns, const Py_buffer *out, Py_ssize_t first_row)
{
    Py_ssize_t rows = columns[TIMESTAMPS].len / 8;
    if (first_row < 0 || first_row > rows || !are_whole(columns, rows) || out->len < BATCH_OVERHEAD || out->len > INT32_MAX)
        return PyErr_Format(PyExc_ValueError, "columns of other lengths, or too little or too much memory");
    uint8_t *batch = out->buf, *records = batch + BATCH_OVERHEAD;
    Encoder encoder = {columns, batch, records, batch + out->len, first_row, first_row, rows, 0, 0};
    int is_whole;
    Py_BEGIN_ALLOW_THREADS
    is_whole = encode_batch(&encoder);
    Py_END_ALLOW_THREADS
    if (!is_whole)
        return PyErr_Format(PyExc_ValueError, "a field of row %zd is not in its column", encoder.row);
    return Py_BuildValue("nn", encoder.row, (Py_ssize_t)(encoder.at - batch));
}

/* Take hold of the columns of `Rows`; false, with an exception, if that is not possible. */
static int get_columns(PyObject *of_columns, Py_buffer *columns)
{
    PyObject *given[COLUMNS];
    int count = 0;
    if (!PyArg_ParseTuple(of_columns, "(OOO)(OOO)O(OOO)(OOO)O", &given[0], &given[1], &given[2], &given[3], &given[4],
                          &given[5], &given[6], &given[7], &given[8], &given[9], &given[10], &given[11], &given[12],
                          &given[13]))
        return 0;
    while (count < COLUMNS && PyObject_GetBuffer(given[count], &columns[count], PyBUF_SIMPLE) == 0)
        count++;
    if (count == COLUMNS)
        return 1;
    while (count)
        PyBuffer_Release(&columns[--count]);
    return 0;
}

static void release_columns(Py_buffer *columns)
{
    for (int column = 0; column < COLUMNS; column++)
        PyBuffer_Release(&columns[column]);
}

static inline int64_t content_at(const Py_buffer *columns, int first, Py_ssize_t row)
{
    int64_t length = number_at(columns, first + 2, row);
    return length < 0 ? 0 : length;
}

/* The bytes of the largest key and value of a record, those of all fields, and whether there are keys. */
PyObject *measure_rows(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *of_columns;
    Py_buffer columns[COLUMNS];
    if (!PyArg_ParseTuple(args, "O!", &PyTuple_Type, &of_columns) || !get_columns(of_columns, columns))
        return NULL;
    Py_ssize_t rows = columns[TIMESTAMPS].len / 8, headers = columns[HEADER_KEYS + 2].len / 8;
    if (!are_whole(columns, rows)) {
        release_columns(columns);
        return PyErr_Format(PyExc_ValueError, "columns of other lengths");
    }
    int64_t largest = 0, total = 0;
    int has_keys = 0;
    for (Py_ssize_t row = 0; row < rows; row++) {
        int64_t size = content_at(columns, KEYS, row) + content_at(columns, VALUES, row);
        has_keys |= number_at(columns, KEYS + 2, row) >= 0;
        largest = size > largest ? size : largest;
        total += size;
    }
    for (Py_ssize_t header = 0; header < headers; header++)
        total += content_at(columns, HEADER_KEYS, header) + content_at(columns, HEADER_VALUES, header);
    release_columns(columns);
    return Py_BuildValue("LLN", (long long)largest, (long long)total, PyBool_FromLong(has_keys));
}

PyObject *encode_rows(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *of_columns, *memory, *encoded = NULL;
    Py_ssize_t first_row;
    Py_buffer columns[COLUMNS], out;
    if (!PyArg_ParseTuple(args, "O!On", &PyTuple_Type, &of_columns, &memory, &first_row)
        || PyObject_GetBuffer(memory, &out, PyBUF_WRITABLE) < 0)
        return NULL;
    if (get_columns(of_columns, columns)) {
        encoded = encode_into(columns, &out, first_row);
        release_columns(columns);
    }
    PyBuffer_Release(&out);
    return encoded;
}
