#include "arguments.h"

#include <cmath>
#include <limits>

namespace armllm {

namespace {

[[noreturn]] void refuse(const char* name, PyObject* object, const char* expected) {
  throw std::invalid_argument(std::string(name) + " is " + repr(object) + ", expected " + expected);
}

[[noreturn]] void refuse_type(const char* name, PyObject* object, const char* expected) {
  PyErr_Clear();
  throw WrongType(std::string(name) + " is " + repr(object) + ", expected " + expected);
}

// Also a number of numpy or a tensor of one element, as Python's own functions take them.
double real(const char* name, PyObject* object) {
  const double value = PyFloat_AsDouble(object);
  if (value != -1 || PyErr_Occurred() == nullptr) return value;
  if (PyErr_ExceptionMatches(PyExc_OverflowError) == 0) refuse_type(name, object, "a number");
  PyErr_Clear();
  return HUGE_VAL;  // no caller takes it
}

// Of a normal float32: kernels multiply and divide numbers by factors near 1, which must leave them one.
constexpr double kLeast = 1e-37, kMost = 1e38;
// Of what kernels also divide by: neither the quotient nor a number times it becomes infinite or 0 early.
constexpr double kLeastDivisor = 1e-29, kMostDivisor = 1e29;

}  // namespace

std::string text_of_new(PyObject* object) {
  Py_ssize_t size = 0;
  const char* utf8 = object == nullptr ? nullptr : PyUnicode_AsUTF8AndSize(object, &size);
  if (utf8 == nullptr) {
    PyErr_Clear();
    Py_XDECREF(object);
    return "what cannot be shown";
  }
  std::string result(utf8, static_cast<size_t>(size));
  Py_DECREF(object);
  return result;
}

std::string repr(PyObject* object) { return text_of_new(PyObject_Repr(object)); }

float number(const char* name, PyObject* object) {
  const double value = real(name, object), size = std::abs(value);
  if (value != 0 && !(kLeast <= size && size <= kMost)) {
    refuse(name, object, "0 or a number from 1e-37 to 1e38, of either sign");
  }
  return static_cast<float>(value);
}

float not_negative(const char* name, PyObject* object) {
  const double value = real(name, object);
  if (value != 0 && !(kLeast <= value && value <= kMost)) {
    refuse(name, object, "0 or a number from 1e-37 to 1e38");
  }
  return static_cast<float>(value);
}

float divisor_or_none(const char* name, PyObject* object) {
  if (object == Py_None) return 0;
  const double value = real(name, object);
  if (!(kLeastDivisor <= value && value <= kMostDivisor)) {
    refuse(name, object, "a number from 1e-29 to 1e29, or None");
  }
  return static_cast<float>(value);
}

int64_t count_or_none(const char* name, PyObject* object) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  if (object == Py_None) return kMost;
  int overflow = 0;
  const int64_t value = PyLong_AsLongLongAndOverflow(object, &overflow);
  if (value == -1 && PyErr_Occurred() != nullptr) refuse_type(name, object, "a whole number, or None");
  if (overflow > 0) return kMost;
  if (overflow < 0 || value < 1) refuse(name, object, "at least 1, or None");
  return value;
}

int64_t integer(const char* name, PyObject* object) {
  const int64_t value = PyLong_AsLongLong(object);
  if (value == -1 && PyErr_Occurred() != nullptr) refuse_type(name, object, "a whole number of 64 bits");
  return value;
}

bool boolean(const char* name, PyObject* object) {
  if (!PyBool_Check(object)) refuse_type(name, object, "True or False");
  return object == Py_True;
}

std::string_view text(const char* name, PyObject* object) {
  Py_ssize_t size = 0;
  const char* utf8 = PyUnicode_Check(object) ? PyUnicode_AsUTF8AndSize(object, &size) : nullptr;
  if (utf8 == nullptr) refuse_type(name, object, "a text");
  return {utf8, static_cast<size_t>(size)};
}

int bits(PyObject* object) {
  const int64_t value = integer("bits", object);
  if (value != 4 && value != 8) refuse("bits", object, "4 or 8");
  return static_cast<int>(value);
}

Values values_of(const char* name, std::string_view text) {
  constexpr std::string_view kNames[] = {"integers", "e2m1", "iq4_nl"};
  for (const std::string_view& known : kNames) {
    if (text == known) return static_cast<Values>(&known - kNames);
  }
  throw std::invalid_argument(std::string(name) + " is '" + std::string(text) +
                              "', expected one of integers, e2m1, iq4_nl");
}

Description::Description(const char* name, PyObject* object, Py_ssize_t size) : name_(name), tuple_(object) {
  if (!PyTuple_CheckExact(object) || PyTuple_GET_SIZE(object) != size) {
    refuse_type(name, object, "its description, a tuple");
  }
}

void check_count(Py_ssize_t count, int expected) {
  if (count != expected) {
    throw WrongType("expected " + std::to_string(expected) + " arguments, got " + std::to_string(count));
  }
}

void set_python_error() {
  try {
    throw;
  } catch (const WrongType& error) {
    PyErr_SetString(PyExc_TypeError, error.what());
  } catch (const std::invalid_argument& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, (std::string("the kernel failed: ") + error.what()).c_str());
  }
}

}  // namespace armllm
