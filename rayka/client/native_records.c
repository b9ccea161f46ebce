/* Records made and encoded without Python code: what a producer's thread and a consumer's thread do for each record.

`RecordsBuilder` is a batch that is being filled: it encodes a record as soon as it is appended, behind 61 bytes for the
header of the batch. `rayka/storage/format/records.py` describes the format. `make_records` makes the record objects of a
fetch, and `native_rows.c` encodes columns. Where this module is not compiled, plain Python does the same work
(`rayka/client/producer/filling.py`, `rayka/client/consumer/located.py`).

The thread holds the GIL throughout, and nothing here runs Python code before a change is complete. So threads can't
disturb one another, and neither Ctrl-C nor a lack of memory leaves half a record. Only the stable ABI is used: one
binary serves Python 3.11 and later. */

#include "native_records.h"
#include <time.h>

#define INTERFACE 2             /* to be raised with `_INTERFACE` of native.py, when what Python calls here changes */
#define FIRST_TIMESTAMPS 16
#define RECORD_FIELDS 8
#define MOST_BYTES INT32_MAX    /* of a batch: its length is an int32 */

typedef struct {
    PyObject_HEAD
    uint8_t *bytes;             /* the header's 61 bytes and the records */
    int64_t *timestamps;        /* of each record, in ms */
    Py_ssize_t size;            /* of the header and the records */
    Py_ssize_t allocated;       /* bytes of memory */
    Py_ssize_t reserved;        /* up to this size `append` adds records */
    Py_ssize_t limit, step;     /* up to this size, and in these steps, `put` adds to `reserved` */
    Py_ssize_t count, timestamp_room;
    int64_t max_timestamp;
    Py_ssize_t views;           /* that Python has of `bytes` */
    char is_closed, is_dropped;
} RecordsBuilder;

/* Bytes or None; false for anything else. */
static inline int read_field(PyObject *given, Field *field)
{
    if (given == Py_None) {
        *field = (Field){"", -1};
        return 1;
    }
    if (!PyBytes_Check(given))
        return 0;
    *field = (Field){PyBytes_AsString(given), PyBytes_Size(given)};
    return 1;
}

/* RecordsBuilder */

/* Reserve memory for `size` bytes and a step more; false if there is none. */
static int reserve(RecordsBuilder *self, Py_ssize_t size)
{
    Py_ssize_t reserved = size + self->step < self->limit ? size + self->step : self->limit;
    if (reserved < size)
        reserved = size;
    if (reserved > self->allocated) {
        Py_ssize_t allocated = self->allocated * 2 < self->limit ? self->allocated * 2 : self->limit;
        if (allocated < reserved)
            allocated = reserved;
        uint8_t *bytes = PyMem_Realloc(self->bytes, (size_t)allocated);
        if (bytes == NULL)
            return 0;
        self->bytes = bytes;
        self->allocated = allocated;
    }
    self->reserved = reserved;
    return 1;
}

static int reserve_timestamp(RecordsBuilder *self)
{
    if (self->count < self->timestamp_room)
        return 1;
    Py_ssize_t room = self->timestamp_room ? self->timestamp_room * 2 : FIRST_TIMESTAMPS;
    int64_t *timestamps = PyMem_Realloc(self->timestamps, (size_t)room * sizeof(int64_t));
    if (timestamps == NULL)
        return 0;
    self->timestamps = timestamps;
    self->timestamp_room = room;
    return 1;
}

/* Encode a record, and return its index; None if there is no room, or the builder is closed. */
static PyObject *put_record(RecordsBuilder *self, Field value, Field key, int64_t timestamp, Field headers, int may_reserve)
{
    int64_t base = self->count ? self->timestamps[0] : timestamp;
    uint64_t time_delta = zigzag((int64_t)((uint64_t)timestamp - (uint64_t)base));
    uint64_t offset_delta = zigzag(self->count);
    Py_ssize_t body = 1 + varint_size(time_delta) + varint_size(offset_delta) + field_size(key) + field_size(value)
        + (headers.length ? headers.length : 1);
    Py_ssize_t end = self->size + varint_size(zigzag(body)) + body;
    if (self->is_closed || (end > self->reserved && !may_reserve) || (self->count && end > self->limit))
        Py_RETURN_NONE;
    if (end > MOST_BYTES)
        return PyErr_Format(PyExc_OverflowError, "a batch of %zd bytes is too large", end);
    if ((end > self->reserved && !reserve(self, end)) || !reserve_timestamp(self))
        return PyErr_NoMemory();
    PyObject *index = PyLong_FromSsize_t(self->count);
    if (index == NULL)
        return NULL;
    uint8_t *at = put_varint(self->bytes + self->size, zigzag(body));
    *at++ = 0;                  /* attributes */
    at = put_varint(at, time_delta);
    at = put_varint(at, offset_delta);
    at = put_field(at, key);
    at = put_field(at, value);
    if (headers.length)
        memcpy(at, headers.bytes, (size_t)headers.length);
    else
        *at = 0;
    self->size = end;
    self->timestamps[self->count++] = timestamp;
    if (self->count == 1 || timestamp > self->max_timestamp)
        self->max_timestamp = timestamp;
    return index;
}

static PyObject *builder_append(RecordsBuilder *self, PyObject *const *args, Py_ssize_t count)
{
    Field value, key;
    if (count != 2)
        return PyErr_Format(PyExc_TypeError, "append takes a value and a key, not %zd arguments", count);
    if (!read_field(args[0], &value) || !read_field(args[1], &key))
        Py_RETURN_NONE;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    int64_t timestamp = (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
    return put_record(self, value, key, timestamp, (Field){"", 0}, 0);
}

static PyObject *builder_put(RecordsBuilder *self, PyObject *const *args, Py_ssize_t count)
{
    Field value, key, headers;
    if (count != 4 || !read_field(args[0], &value) || !read_field(args[1], &key) || !read_field(args[3], &headers)
        || headers.length < 0)
        return PyErr_Format(PyExc_TypeError, "put takes value and key (bytes or None), a timestamp and headers (bytes)");
    int64_t timestamp = PyLong_AsLongLong(args[2]);
    if (timestamp == -1 && PyErr_Occurred())
        return NULL;
    return put_record(self, value, key, timestamp, headers, 1);
}

static PyObject *builder_close(RecordsBuilder *self, PyObject *Py_UNUSED(nothing))
{
    self->is_closed = 1;
    Py_RETURN_NONE;
}

static void free_bytes(RecordsBuilder *self)
{
    if (self->is_dropped && !self->views) {
        PyMem_Free(self->bytes);
        self->bytes = NULL;
        self->allocated = 0;
    }
}

static PyObject *builder_drop(RecordsBuilder *self, PyObject *Py_UNUSED(nothing))
{
    self->is_closed = self->is_dropped = 1;
    free_bytes(self);
    Py_RETURN_NONE;
}

static PyObject *builder_timestamp(RecordsBuilder *self, PyObject *given)
{
    Py_ssize_t index = PyLong_AsSsize_t(given);
    if (index == -1 && PyErr_Occurred())
        return NULL;
    if (index < 0 || index >= self->count)
        return PyErr_Format(PyExc_IndexError, "there are %zd records", self->count);
    return PyLong_FromLongLong(self->timestamps[index]);
}

static PyObject *builder_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"limit", "step", NULL};
    Py_ssize_t limit, step;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "nn", names, &limit, &step))
        return NULL;
    if (limit < 0 || limit > MOST_BYTES || step < 0 || step > MOST_BYTES)
        return PyErr_Format(PyExc_ValueError, "limit and step must be from 0 up to %d", MOST_BYTES);
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    RecordsBuilder *self = (RecordsBuilder *)allocate(type, 0);
    if (self == NULL)
        return NULL;
    self->limit = limit;
    self->step = step;
    self->size = BATCH_OVERHEAD;
    return (PyObject *)self;
}

static void builder_dealloc(RecordsBuilder *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyMem_Free(self->bytes);
    PyMem_Free(self->timestamps);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

/* A view of the header's bytes and the records. The builder is closed, since memory that is looked at must not move. */
static int builder_get_buffer(RecordsBuilder *self, Py_buffer *view, int flags)
{
    if (self->bytes == NULL) {
        PyErr_SetString(PyExc_BufferError, "there are no records");
        view->obj = NULL;
        return -1;
    }
    if (PyBuffer_FillInfo(view, (PyObject *)self, self->bytes, self->size, 0, flags) < 0)
        return -1;
    self->is_closed = 1;
    self->views++;
    return 0;
}

static void builder_release_buffer(RecordsBuilder *self, Py_buffer *Py_UNUSED(view))
{
    self->views--;
    free_bytes(self);
}

static PyObject *get_size(RecordsBuilder *self, void *Py_UNUSED(nothing)) { return PyLong_FromSsize_t(self->size); }

static PyObject *get_reserved(RecordsBuilder *self, void *Py_UNUSED(nothing))
{
    return PyLong_FromSsize_t(self->reserved);
}

static PyObject *get_is_dropped(RecordsBuilder *self, void *Py_UNUSED(nothing))
{
    return PyBool_FromLong(self->is_dropped);
}

static PyObject *get_max_timestamp(RecordsBuilder *self, void *Py_UNUSED(nothing))
{
    return PyLong_FromLongLong(self->max_timestamp);
}

static Py_ssize_t builder_length(RecordsBuilder *self) { return self->count; }

static PyMethodDef builder_methods[] = {
    {"append", (PyCFunction)(void (*)(void))builder_append, METH_FASTCALL, NULL},
    {"put", (PyCFunction)(void (*)(void))builder_put, METH_FASTCALL, NULL},
    {"close", (PyCFunction)builder_close, METH_NOARGS, NULL},
    {"drop", (PyCFunction)builder_drop, METH_NOARGS, NULL},
    {"timestamp", (PyCFunction)builder_timestamp, METH_O, NULL},
    {NULL},
};

static PyGetSetDef builder_getters[] = {
    {"size", (getter)get_size, NULL, NULL, NULL},
    {"reserved", (getter)get_reserved, NULL, NULL, NULL},
    {"is_dropped", (getter)get_is_dropped, NULL, NULL, NULL},
    {"max_timestamp", (getter)get_max_timestamp, NULL, NULL, NULL},
    {NULL},
};

static PyType_Slot builder_slots[] = {
    {Py_tp_new, builder_new},
    {Py_tp_dealloc, builder_dealloc},
    {Py_tp_methods, builder_methods},
    {Py_tp_getset, builder_getters},
    {Py_sq_length, builder_length},
    {Py_bf_getbuffer, builder_get_buffer},
    {Py_bf_releasebuffer, builder_release_buffer},
    {0, NULL},
};

static PyType_Spec builder_spec = {
    "rayka.client.native_records.RecordsBuilder", sizeof(RecordsBuilder), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    builder_slots,
};

/* make_records */

enum { DATA, OFFSETS, TIMESTAMPS, KEY_POSITIONS, KEY_LENGTHS, VALUE_POSITIONS, VALUE_LENGTHS, COLUMNS };

static const Py_ssize_t WIDTHS[COLUMNS] = {1, 8, 8, 4, 4, 4, 4};

static inline Py_ssize_t int32_at(const Py_buffer *columns, int column, Py_ssize_t row)
{
    int32_t number;             /* a column may begin at any address */
    memcpy(&number, (const char *)columns[column].buf + row * WIDTHS[column], sizeof(number));
    return number;
}

static inline int64_t int64_at(const Py_buffer *columns, int column, Py_ssize_t row)
{
    int64_t number;
    memcpy(&number, (const char *)columns[column].buf + row * WIDTHS[column], sizeof(number));
    return number;
}

static inline Py_ssize_t length_at(const Py_buffer *columns, int lengths, Py_ssize_t row)
{
    Py_ssize_t length = int32_at(columns, lengths, row);
    return length < 0 ? 0 : length;
}

/* A new reference to bytes or None; NULL with an exception if the field is not inside the data. */
static inline PyObject *make_field(const Py_buffer *columns, int positions, Py_ssize_t row)
{
    Py_ssize_t position = int32_at(columns, positions, row);
    Py_ssize_t length = int32_at(columns, positions + 1, row);
    if (length < 0) {
        Py_INCREF(Py_None);
        return Py_None;
    }
    if (position < 0 || position > columns[DATA].len - length)
        return PyErr_Format(PyExc_ValueError, "a field of %zd bytes at %zd is outside the data", length, position);
    return PyBytes_FromStringAndSize((const char *)columns[DATA].buf + position, length);
}

static inline PyObject *shared(PyObject *object)
{
    Py_INCREF(object);
    return object;
}

typedef struct {
    PyTypeObject *type;
    PyObject *topic, *partition, *timestamp_type, *headers;
} Common;

static PyObject *make_record(allocfunc allocate, const Common *common, const Py_buffer *columns, Py_ssize_t row)
{
    PyObject *fields[RECORD_FIELDS] = {
        shared(common->topic),
        shared(common->partition),
        PyLong_FromLongLong(int64_at(columns, OFFSETS, row)),
        PyLong_FromLongLong(int64_at(columns, TIMESTAMPS, row)),
        shared(common->timestamp_type),
        make_field(columns, KEY_POSITIONS, row),
        make_field(columns, VALUE_POSITIONS, row),
        shared(common->headers),
    };
    int is_whole = 1;
    for (int field = 0; field < RECORD_FIELDS; field++)
        is_whole &= fields[field] != NULL;
    /* Last: from here on Python code that the garbage collector calls can see it. */
    PyObject *record = is_whole ? allocate(common->type, RECORD_FIELDS) : NULL;
    for (int field = 0; field < RECORD_FIELDS; field++) {
        if (record != NULL)
            PyTuple_SetItem(record, field, fields[field]);
        else
            Py_XDECREF(fields[field]);
    }
    if (record != NULL)
        PyObject_GC_UnTrack(record);    /* it can't be part of a cycle */
    return record;
}

/* The records up to `end`, or fewer: one begins within the first `max_bytes` of keys and values. */
static PyObject *make_all(const Common *common, const Py_buffer *columns, Py_ssize_t start, Py_ssize_t end,
                          Py_ssize_t max_bytes)
{
    allocfunc allocate = (allocfunc)PyType_GetSlot(common->type, Py_tp_alloc);
    PyObject *records = PyList_New(0);
    Py_ssize_t bytes = 0;
    for (Py_ssize_t row = start; records != NULL && row < end && (row == start || bytes <= max_bytes); row++) {
        PyObject *record = make_record(allocate, common, columns, row);
        if (record == NULL || PyList_Append(records, record) < 0)
            Py_CLEAR(records);
        Py_XDECREF(record);
        bytes += length_at(columns, KEY_LENGTHS, row) + length_at(columns, VALUE_LENGTHS, row);
    }
    return records;
}

static PyObject *make_records(PyObject *Py_UNUSED(module), PyObject *args)
{
    Common common;
    PyObject *of_all, *of_columns, *given[COLUMNS];
    Py_ssize_t start, end, max_bytes;
    /* Nothing else keeps the items alive, so they must be in tuples: other sequences may change, or make items anew. */
    if (!PyArg_ParseTuple(args, "O!O!nnn", &PyTuple_Type, &of_all, &PyTuple_Type, &of_columns, &start, &end, &max_bytes)
        || !PyArg_ParseTuple(of_all, "O!OOO", &PyType_Type, &common.type, &common.topic, &common.partition,
                             &common.timestamp_type)
        || !PyArg_ParseTuple(of_columns, "OOOOOOO", &given[0], &given[1], &given[2], &given[3], &given[4], &given[5],
                             &given[6]))
        return NULL;
    if (!PyType_IsSubtype(common.type, &PyTuple_Type))
        return PyErr_Format(PyExc_TypeError, "records must be tuples");
    PyObject *records = NULL;
    Py_buffer columns[COLUMNS];
    int count = 0;
    common.headers = PyTuple_New(0);
    while (common.headers != NULL && count < COLUMNS
           && PyObject_GetBuffer(given[count], &columns[count], PyBUF_SIMPLE) == 0) {
        Py_ssize_t rows = columns[count].len / WIDTHS[count];
        if (count++ != DATA && (start < 0 || end > rows)) {
            PyErr_Format(PyExc_ValueError, "there are %zd records, and not those from %zd up to %zd", rows, start, end);
            Py_CLEAR(common.headers);
        }
    }
    if (common.headers != NULL && count == COLUMNS)
        records = make_all(&common, columns, start, end, max_bytes);
    while (count)
        PyBuffer_Release(&columns[--count]);
    Py_XDECREF(common.headers);
    return records;
}

/* The module */

static PyMethodDef functions[] = {
    {"make_records", make_records, METH_VARARGS, NULL},
    {"measure_rows", measure_rows, METH_VARARGS, NULL},
    {"encode_rows", encode_rows, METH_VARARGS, NULL},
    {NULL},
};

static int execute(PyObject *module)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &builder_spec, NULL);
    if (type == NULL)
        return -1;
    int failed = PyModule_AddObjectRef(module, "RecordsBuilder", type);
    Py_DECREF(type);
    return failed ? -1 : PyModule_AddIntConstant(module, "INTERFACE", INTERFACE);
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, execute}, {0, NULL}};

static PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "rayka.client.native_records", NULL, 0, functions, module_slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit_native_records(void) { return PyModuleDef_Init(&module); }
