#include "recording.h"

#include "armllm/dispatch.h"

namespace armllm {

namespace {

thread_local std::unique_ptr<Program> current;

void multiply(const Product& product, const Beside& beside) {
  matmul(dispatched().table, product.form, product.storage, product.args, beside);
}

}  // namespace

void Program::append_norm(std::function<void()> op, PiecewiseOp pieces, const Rows& out) {
  ops_.push_back({std::move(op), std::make_shared<const PiecewiseOp>(std::move(pieces)), nullptr, out});
}

void Program::append_product(const Product& product) {
  const bool is_empty = product.args.rows == 0 || product.args.shape.out_features == 0;
  std::shared_ptr<const PiecewiseOp> norm;
  if (!is_empty && !ops_.empty() && ops_.back().norm != nullptr && ops_.back().product == nullptr &&
      ops_.back().out == product.x()) {
    norm = std::move(ops_.back().norm);
    ops_.pop_back();
  }
  ops_.push_back({[=] { multiply(product, {norm.get(), nullptr}); }, norm,
                  is_empty ? nullptr : std::make_unique<Product>(product), product.out()});
}

void Program::append_activation(std::function<void()> op, PiecewiseOp pieces, const Rows& x) {
  if (ops_.empty() || ops_.back().product == nullptr || !(ops_.back().out == x)) {
    append(std::move(op));
    return;
  }
  const Product product = *ops_.back().product;
  const std::shared_ptr<const PiecewiseOp> norm = std::move(ops_.back().norm);
  ops_.pop_back();
  append([=, activation = std::move(pieces)] { multiply(product, {norm.get(), &activation}); });
}

void Program::run() const {
  for (const Op& op : ops_) op.run();
}

void run_product(const Product& product) {
  if (Program* const program = current_recording(); program != nullptr) program->append_product(product);
  const WithoutGil released;
  multiply(product, {});
}

void start_recording() { current = std::make_unique<Program>(); }

std::unique_ptr<Program> take_recording() {
  if (current == nullptr || current->empty()) return nullptr;
  return std::exchange(current, std::make_unique<Program>());
}

void stop_recording() { current.reset(); }

Program* current_recording() { return current.get(); }

}  // namespace armllm
