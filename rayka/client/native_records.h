/* What the files of the C module have in common: how a record's numbers and fields are written. */

#ifndef RAYKA_NATIVE_RECORDS_H
#define RAYKA_NATIVE_RECORDS_H

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#define BATCH_OVERHEAD 61
#define NULL_LENGTH 1           /* the varint of -1 */

typedef struct {
    const char *bytes;
    Py_ssize_t length;          /* -1 for null */
} Field;

/* Varints */

static inline uint64_t zigzag(int64_t number) { return ((uint64_t)number << 1) ^ (uint64_t)(number >> 63); }

static inline int varint_size(uint64_t number)
{
    return (63 - __builtin_clzll(number | 1)) / 7 + 1;
}

static inline uint8_t *put_varint(uint8_t *at, uint64_t number)
{
    while (number > 0x7F) {
        *at++ = (uint8_t)(number | 0x80);
        number >>= 7;
    }
    *at++ = (uint8_t)number;
    return at;
}

static inline Py_ssize_t field_size(Field field)
{
    return field.length < 0 ? 1 : varint_size(zigzag(field.length)) + field.length;
}

static inline uint8_t *put_field(uint8_t *at, Field field)
{
    if (field.length < 0) {
        *at++ = NULL_LENGTH;
        return at;
    }
    at = put_varint(at, zigzag(field.length));
    memcpy(at, field.bytes, (size_t)field.length);
    return at + field.length;
}

/* native_rows.c */

PyObject *measure_rows(PyObject *module, PyObject *args);
PyObject *encode_rows(PyObject *module, PyObject *args);

#endif
