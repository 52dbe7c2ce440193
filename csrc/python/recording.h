// The ops that a Python thread calls, with their arguments, to be run once more by one call
// (docs/kernels.md#recorded-steps).

#pragma once

#include <Python.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "armllm/ops.h"

namespace armllm {

// A matrix that an op writes or reads.
struct Rows {
  const void* data;
  int64_t rows, columns, stride;
  Storage storage;

  bool operator==(const Rows& other) const {
    return data == other.data && rows == other.rows && columns == other.columns && stride == other.stride &&
           storage == other.storage;
  }
};

// A product with its arguments.
struct Product {
  WeightForm form;
  Storage storage;
  MatmulArgs args;

  Rows x() const { return {args.x, args.rows, args.shape.in_features, args.x_stride, storage}; }
  Rows out() const { return {args.out, args.rows, args.shape.out_features, args.out_stride, storage}; }
};

// Ops in the order of their calls. Their tensors' memory is the caller's: it must outlive the program.
//
// A norm before a product of its rows, and an activation of what a product wrote, are run in the product's
// region (`Beside`). They write what they write alone.
class Program {
 public:
  void append(std::function<void()> op) { ops_.push_back({std::move(op), {}, {}, {}}); }
  void append_norm(std::function<void()> op, PiecewiseOp pieces, const Rows& out);
  void append_product(const Product& product);
  void append_activation(std::function<void()> op, PiecewiseOp pieces, const Rows& x);
  bool empty() const { return ops_.empty(); }
  // Indices in tensors are checked as at the first time; an op that refuses one ends the run.
  void run() const;

 private:
  // An op, and what may be joined with the one behind it.
  struct Op {
    std::function<void()> run;
    std::shared_ptr<const PiecewiseOp> norm;  // its own, or that of the product
    std::unique_ptr<Product> product;
    Rows out;
  };
  std::vector<Op> ops_;
};

// From now on this thread's ops are recorded, too.
void start_recording();
// What was recorded since the start or since this was last asked; null: nothing.
std::unique_ptr<Program> take_recording();
void stop_recording();

// The program of this thread that is being recorded, or null.
Program* current_recording();

// Other Python threads run while it lives.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil() { PyEval_RestoreThread(state_); }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_;
};

// Runs an op whose arguments have been checked, while other Python threads run. Nothing else computes: what
// is not run by it is missing in a replay.
template <class Op>
void run_op(const Op& op) {
  if (Program* const program = current_recording(); program != nullptr) program->append(op);
  const WithoutGil released;
  op();
}
// The same for ops that a product may take along; `pieces` makes them.
template <class Op, class Make>
void run_norm(const Op& op, const Make& pieces, const Rows& out) {
  if (Program* const program = current_recording(); program != nullptr) {
    program->append_norm(op, pieces(), out);
  }
  const WithoutGil released;
  op();
}
template <class Op, class Make>
void run_activation(const Op& op, const Make& pieces, const Rows& x) {
  if (Program* const program = current_recording(); program != nullptr) {
    program->append_activation(op, pieces(), x);
  }
  const WithoutGil released;
  op();
}
void run_product(const Product& product);

}  // namespace armllm
