// How functions are called from Python, and arguments that are no tensors. `name` is that of an argument, for
// messages.

#pragma once

#include <Python.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

#include "armllm/ops.h"

namespace armllm {

// Becomes a TypeError; std::invalid_argument a ValueError; any other exception a RuntimeError.
struct WrongType : std::logic_error {
  using std::logic_error::logic_error;
};

std::string repr(PyObject* object);
// Steals it; throws if it is null.
std::string text_of_new(PyObject* object);

// 0, or what float32 holds with room on both sides.
float number(const char* name, PyObject* object);
float not_negative(const char* name, PyObject* object);
// What is divided by; 0 for None.
float divisor_or_none(const char* name, PyObject* object);
// At least 1; the largest int64 for None, and for more than that.
int64_t count_or_none(const char* name, PyObject* object);
int64_t integer(const char* name, PyObject* object);
bool boolean(const char* name, PyObject* object);
// As long as the object lives.
std::string_view text(const char* name, PyObject* object);
// 4 or 8
int bits(PyObject* object);
Values values_of(const char* name, std::string_view text);

// A tuple by which a dataclass of kernels/*.py describes itself.
class Description {
 public:
  Description(const char* name, PyObject* object, Py_ssize_t size);
  int64_t number(Py_ssize_t at) const { return integer(name_, PyTuple_GET_ITEM(tuple_, at)); }
  std::string_view text(Py_ssize_t at) const { return armllm::text(name_, PyTuple_GET_ITEM(tuple_, at)); }

 private:
  const char* name_;
  PyObject* tuple_;
};

// A function of the module takes its arguments as a pointer, and throws what is wrong with them.
void check_count(Py_ssize_t count, int expected);
void set_python_error();  // for the exception that is being handled

constexpr int count_names(const char* parameters) {
  int count = 1;
  for (; *parameters != '\0'; ++parameters) count += *parameters == ',' ? 1 : 0;
  return count;
}

template <auto* function, int expected>
PyObject* call(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  try {
    check_count(count, expected);
    if constexpr (std::is_void_v<decltype(function(arguments))>) {
      function(arguments);
      Py_RETURN_NONE;
    } else {
      return function(arguments);
    }
  } catch (...) {
    set_python_error();
    return nullptr;
  }
}

// `parameters`: their names, as Python is to see them.
#define ARMLLM_METHOD(name, parameters, function)                                                           \
  PyMethodDef{                                                                                              \
      name,                                                                                                 \
      reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(call<function, count_names(parameters)>)), \
      METH_FASTCALL, name "(" parameters ", /)\n--\n\n"}

}  // namespace armllm
