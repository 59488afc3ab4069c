// Implements PlayedOperators and OperatorLog.
#include "fsdp/played_operators.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/median.h"
#include "fsdp/error.h"
#include "libtorch/default_device.h"
#include "libtorch/torch_memory.h"
#include "meta/value_tensors.h"
#include "planner/time/caches.h"
#include "planner/time/device_timer.h"
#include "planner/time/operator_key.h"
#include "planner/time/operator_log.h"

namespace fsdp {
namespace {

bool is_plain(const c10::IValue& value) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    return !tensor.defined() || tensor.layout() == at::kStrided;
  }
  return value.isTensorList() || value.isOptionalTensorList() || value.isNone() || value.isInt() ||
         value.isDouble() || value.isBool() || value.isString() || value.isIntList() ||
         value.isDoubleList() || value.isBoolList() || value.isDevice() ||
         value.isComplexDouble() || value.isSymInt();
}

// Returns a meta tensor with the properties of `tensor`. It does not keep a graph of autograd.
at::Tensor shape_of_tensor(const at::Tensor& tensor) {
  at::Tensor shape =
      at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta));
  if (tensor.requires_grad()) shape.requires_grad_();
  return shape;
}

bool writes_argument(const c10::OperatorHandle& op) {
  return std::ranges::any_of(op.schema().arguments(), [](const c10::Argument& argument) {
    return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
  });
}

// Replaces equal tensors by one new tensor.
template <class Make>
class Replacement {
 public:
  explicit Replacement(Make make) : make_(std::move(make)) {}
  at::Tensor operator()(const at::Tensor& tensor) const {
    if (!tensor.defined()) return tensor;
    at::Tensor& made = made_[tensor.unsafeGetTensorImpl()];
    if (!made.defined()) made = make_(tensor);
    return made;
  }

 private:
  const Make make_;
  mutable std::unordered_map<const c10::TensorImpl*, at::Tensor> made_;
};

// Returns the bound of indexes that the operator accepts: the rows of a table, or classes of a
// loss. 1 for all other operators.
int64_t index_bound(const PlayedOperator& played) {
  const std::string_view name = played.op.schema().name();
  const torch::jit::Stack& arguments = played.arguments;
  if (name == "aten::embedding") return arguments[0].toTensor().size(0);
  if (name == "aten::embedding_dense_backward" || name == "aten::embedding_backward") {
    return arguments[2].toInt();
  }
  if (name == "aten::cross_entropy_loss" || name.starts_with("aten::nll_loss_forward")) {
    const at::Tensor& scores = arguments[0].toTensor();
    return scores.dim() == 1 ? scores.size(0) : scores.size(1);
  }
  if (name.starts_with("aten::nll_loss_backward")) return arguments[1].toTensor().size(-1);
  return 1;
}

// Sets random values. Large tensors repeat a block, because random numbers take long.
void set_values(const at::Tensor& tensor, int64_t bound) {
  constexpr int64_t kBlock = 1 << 16;
  if (tensor.scalar_type() == at::kBool) {
    tensor.fill_(1);
  } else if (!tensor.is_floating_point()) {
    if (bound > 1) {
      tensor.random_(0, bound);
    } else {
      tensor.zero_();
    }
  } else {
    // The elements in the order of memory, if they fill it.
    const bool is_dense = tensor.is_non_overlapping_and_dense();
    const at::Tensor flat =
        is_dense ? tensor.as_strided({tensor.numel()}, {1}) : tensor.new_empty({tensor.numel()});
    const int64_t first = std::min(kBlock, flat.numel());
    flat.narrow(0, 0, first).normal_();
    for (int64_t done = first; done > 0 && done < flat.numel();) {
      const int64_t count = std::min(done, flat.numel() - done);
      flat.narrow(0, done, count).copy_(flat.narrow(0, 0, count));
      done += count;
    }
    // An expanded tensor has fewer stored elements than elements.
    if (!is_dense) tensor.fill_(0.5);
  }
}

// `caches` may be null: they keep the arguments.
torch::jit::Stack arguments_on(const PlayedOperator& played, c10::Device device, Caches* caches) {
  const int64_t bound = index_bound(played);
  const at::NoGradGuard no_graph;
  const bool is_leaf_written = writes_argument(played.op);
  const Replacement real([&](const at::Tensor& shape) {
    at::Tensor tensor =
        at::empty_strided(shape.sizes(), shape.strides(), shape.options().device(device));
    set_values(tensor, bound);
    // Autograd refuses a write to a leaf that requires grad.
    if (shape.requires_grad() && !is_leaf_written) tensor.requires_grad_();
    return tensor;
  });
  torch::jit::Stack stack;
  for (const c10::IValue& value : played.arguments) {
    stack.push_back(value.isDevice() ? c10::IValue(device) : with_tensors(value, real));
  }
  if (!device.is_cpu() || caches == nullptr) return stack;
  // [Note: caches of measurements]
  caches->fill_level_2();
  for (const at::Tensor& parameter : played.parameters) {
    const at::Tensor made = real(parameter);
    Caches::flush(made.storage().data(), made.storage().nbytes());
  }
  return stack;
}

}  // namespace

void OperatorLog::before(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  std::string key = operator_key(op, stack);
  if (!seen_.insert(key).second) return;
  const auto arguments = torch::jit::last(stack, op.schema().arguments().size());
  if (!std::ranges::all_of(arguments, is_plain)) return;
  const torch_memory::MeterScope uncounted(nullptr);
  const Replacement shapes(shape_of_tensor);
  torch::jit::Stack kept;
  std::vector<at::Tensor> parameters;
  for (const c10::IValue& value : arguments) {
    kept.push_back(with_tensors(value, shapes));
    for_tensors(value, [&](const at::Tensor& tensor) {
      if (tensor.is_leaf() && tensor.requires_grad()) parameters.push_back(shapes(tensor));
    });
  }
  operators_.push_back(std::make_shared<const PlayedOperator>(
      PlayedOperator{.key = std::move(key),
                     .op = op,
                     .arguments = std::move(kept),
                     .parameters = std::move(parameters),
                     .records_graph = records_graph(op, stack)}));
}

PlayedOperators::PlayedOperators(std::vector<std::shared_ptr<const PlayedOperator>> operators)
    : operators_(std::move(operators)), times_(operators_.size()) {}

void PlayedOperators::play(c10::Device device, CpuClock clock, PlayedCaches content) {
  const DefaultDevice factories(device);
  const DeviceTimer timer(device, clock);
  Caches caches;
  const bool is_warm = content == PlayedCaches::kWarm;
  for (size_t i = 0; i < operators_.size(); ++i) {
    const PlayedOperator& played = *operators_[i];
    if (failures_.contains(played.key)) continue;
    try {
      torch::jit::Stack stack = arguments_on(played, device, is_warm ? nullptr : &caches);
      const at::AutoGradMode graph(played.records_graph);
      const double ns = timer.time([&] { played.op.callBoxed(stack); });
      if (rounds_ > 0) times_[i].push_back(ns);
    } catch (const std::exception& error) {
      failures_[played.key] = error.what();
    }
  }
  ++rounds_;
}

std::map<std::string, double> PlayedOperators::medians() const {
  if (rounds_ < 2) {
    throw StateError({.what = fmt::format("operators were played {} times", rounds_),
                      .where = "PlayedOperators::prices",
                      .hint = "call play() twice or more; the first round only warms up"});
  }
  std::map<std::string, double> medians;
  for (size_t i = 0; i < operators_.size(); ++i) {
    const std::string& key = operators_[i]->key;
    if (!failures_.contains(key)) medians[key] = median_of(times_[i]);
  }
  return medians;
}

// [Note: interrupted operators] Other work of the machine interrupts few of the short operators, so
// it hardly changes their medians. But it interrupts each round, as each step. So prices are scaled
// until they add up to the median of the rounds' sums.
double PlayedOperators::interruptions() const {
  double sum = 0;
  for (const auto& [key, ns] : medians()) sum += ns;
  std::vector<double> rounds(static_cast<size_t>(rounds_ - 1));
  for (size_t i = 0; i < operators_.size(); ++i) {
    if (failures_.contains(operators_[i]->key)) continue;
    for (size_t round = 0; round < rounds.size(); ++round) rounds[round] += times_[i][round];
  }
  return sum > 0 ? median_of(std::move(rounds)) / sum - 1 : 0;
}

std::map<std::string, double> PlayedOperators::prices(double between_ns) const {
  std::map<std::string, double> prices = medians();
  const double scale = 1 + interruptions();
  for (auto& [key, ns] : prices) ns = std::max(0.0, scale * ns + between_ns);
  return prices;
}

}  // namespace fsdp
