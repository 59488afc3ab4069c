// Implements SyncBatchNorm. The formulas are those of Ioffe and Szegedy, "Batch Normalization"
// (2015), with sums over the batches of all ranks.
#include "fsdp/sync_batch_norm.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/functional/batchnorm.h>

#include <cmath>
#include <optional>
#include <ostream>

#include "comm/mesh_state.h"
#include "fsdp/error.h"
#include "libtorch/torch_compat.h"
#include "libtorch/torch_cuda.h"
#include "runtime/device.h"

namespace fsdp {
namespace {

// [Note: collectives of modules]
// A module computes on the thread that runs forward and backward, and on the current stream of this
// thread. The engines' communicators belong to the gather and reduce streams, so modules have a
// separate communicator. On the CPU this is the control communicator. The control communicator is
// idle between handshakes, and only this thread uses it, so the collectives of modules keep their
// order in the collective sequence.
void sum_over_ranks(const Mesh& mesh, void* values, int64_t numel, std::string_view label,
                    Communicator& communicator, Stream& stream) {
  const CollectivePart part{values, values, numel, DType::kFloat64};
  communicator.all_reduce({&part, 1}, ReduceOp::kSum,
                          state_of(mesh).order().next(Operation::kAllReduce, numel, label), stream);
}

void sum_over_ranks(const Mesh& mesh, at::Tensor& values, std::string_view label) {
  const MeshParts& parts = state_of(mesh).parts();
  const bool on_device = state_of(mesh).modules_on_device();
  const at::Device device{std::string(parts.device->name())};
  if (on_device && values.device() != device) {
    throw InvalidArgument({.what = fmt::format("SyncBatchNorm got an input on {}, expected {}",
                                               values.device().str(), device.str()),
                           .hint = "move the batch with input.to(engine.device())"});
  }
  if (values.is_meta()) torch_compat::allow_access(values);  // else data_ptr() throws in a plan
  Stream& stream = on_device
                       ? parts.device->compute_stream(torch_cuda::current_stream(values.device()))
                       : cpu_device().compute_stream();
  sum_over_ranks(mesh, values.data_ptr(), values.numel(), label,
                 state_of(mesh).module_communicator(), stream);
}

// Sums, over all ranks, a value that the host needs immediately. The value stays in host memory, so
// the host does not wait for the device.
double sum_over_ranks(const Mesh& mesh, double value, std::string_view label) {
  sum_over_ranks(mesh, &value, 1, label, state_of(mesh).control_communicator(),
                 cpu_device().compute_stream());
  return value;
}

// Returns the type of statistics and arithmetic: fp64 for fp64 inputs, and fp32 for all other
// inputs.
at::ScalarType computed_in(const at::Tensor& input) {
  return input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// Returns `values` [C] in a shape that broadcasts over an input [N, C, …].
at::Tensor by_channel(const at::Tensor& values, const at::Tensor& input) {
  std::vector<int64_t> shape(static_cast<size_t>(input.dim()), 1);
  shape[1] = values.numel();
  return values.view(shape);
}

struct BatchStatistics {
  at::Tensor mean, variance;  // fp64, [C]; the variance is biased
  double count = 0;           // values per channel
};

// Returns the statistics of the batches of all ranks. Each rank computes its mean and variance as
// BatchNorm does, and fp64 sums combine them. No precision is lost if means are large compared with
// deviations, because the sum of the means and the sum of the squares use the same rounded mean.
BatchStatistics statistics_of_ranks(const at::Tensor& input, const Mesh& mesh) {
  const at::NoGradGuard no_grad;
  const int64_t channels = input.size(1);
  const auto count = static_cast<double>(input.numel() / std::max<int64_t>(channels, 1));
  at::Tensor sums = at::zeros({2 * channels + 1}, input.options().dtype(at::kDouble));
  // A rank without samples adds zeros, because every rank must take part in the collective.
  if (count > 0) {
    std::vector<int64_t> dimensions{0};
    for (int64_t d = 2; d < input.dim(); ++d) dimensions.push_back(d);
    const auto [variance, mean] =
        at::var_mean(input.to(computed_in(input)), dimensions, /*correction=*/at::Scalar(0));
    const at::Tensor exact = mean.to(at::kDouble);
    sums.narrow(0, 0, channels).copy_(exact * count);
    sums.narrow(0, channels, channels).copy_((variance.to(at::kDouble) + exact * exact) * count);
    sums.narrow(0, 2 * channels, 1).fill_(count);
  }
  sum_over_ranks(mesh, sums, "batch statistics");
  BatchStatistics all;
  all.count = state_of(mesh).modules_on_device() ? sum_over_ranks(mesh, count, "batch sizes")
                                                 : sums[2 * channels].item<double>();
  if (all.count <= 1) {
    throw InvalidArgument(
        {.what = fmt::format(
             "SyncBatchNorm got {} values per channel over all ranks, expected 2 or more",
             all.count),
         .hint = "give the ranks larger batches"});
  }
  all.mean = sums.narrow(0, 0, channels) / all.count;
  all.variance =
      (sums.narrow(0, channels, channels) / all.count - all.mean * all.mean).clamp_min(0);
  return all;
}

// The values, other than saved tensors, that the forward of Normalize keeps for its backward.
struct Held : torch::CustomClassHolder {
  Held(Mesh of_ranks, double values, double epsilon)
      : mesh(std::move(of_ranks)), count(values), eps(epsilon) {}
  const Mesh mesh;
  const double count, eps;
};

// The normalisation as one autograd node. The statistics are inputs of the node, but they get no
// gradients of their own: the gradient of the input includes the part that passes through them.
struct Normalize : torch::autograd::Function<Normalize> {
  using Context = torch::autograd::AutogradContext;

  // `given_weight` and `given_bias` are empty if the module has no affine parameters.
  static at::Tensor forward(Context* context, const at::Tensor& input,
                            const std::optional<at::Tensor>& given_weight,
                            const std::optional<at::Tensor>& given_bias, const at::Tensor& mean,
                            const at::Tensor& variance, const c10::intrusive_ptr<Held>& held) {
    const at::Tensor weight = given_weight.value_or(at::Tensor());
    const at::Tensor bias = given_bias.value_or(at::Tensor());
    context->save_for_backward({input, weight, mean, variance});
    context->saved_data["held"] = c10::IValue::make_capsule(held);
    context->saved_data["has_bias"] = bias.defined();
    const auto as_computed = [&](const at::Tensor& tensor) {
      return tensor.defined() ? tensor.to(mean.scalar_type()) : tensor;
    };
    if (input.numel() == 0) return at::empty_like(input);
    // The statistics are already computed, so batch_norm is called as in evaluation.
    return at::batch_norm(input, as_computed(weight), as_computed(bias), mean, variance,
                          /*training=*/false, /*momentum=*/0, held->eps, /*cudnn_enabled=*/false);
  }

  static torch::autograd::variable_list backward(Context* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &input = saved[0], &weight = saved[1], &mean = saved[2], &variance = saved[3];
    const auto held =
        c10::static_intrusive_pointer_cast<Held>(context->saved_data["held"].toCapsule());
    // With n = (x - mean) · invstd, the gradient of the input is weight · invstd · (g - mean(g) - n
    // · mean(g · n)). The means are over the batches of all ranks.
    const at::Tensor invstd = (variance + held->eps).rsqrt();
    const int64_t channels = input.size(1);
    const at::Tensor gradient = gradients[0].to(mean.scalar_type());
    const at::Tensor deviation = input.to(mean.scalar_type()) - by_channel(mean, input);
    std::vector<int64_t> dimensions{0};
    for (int64_t d = 2; d < input.dim(); ++d) dimensions.push_back(d);
    // These are this rank's gradients of bias and weight. The engine reduces them like all
    // gradients. Only the gradient of the input needs sums over the ranks here.
    const at::Tensor sum = gradient.sum(dimensions);
    const at::Tensor sum_normalized = (gradient * deviation).sum(dimensions) * invstd;
    at::Tensor of_input;
    if (context->needs_input_grad(0)) {
      at::Tensor sums = at::cat({sum, sum_normalized}).to(at::kDouble);
      sum_over_ranks(held->mesh, sums, "batch gradients");
      const at::Tensor means = (sums / held->count).to(mean.scalar_type());
      const at::Tensor scale = weight.defined() ? weight.to(mean.scalar_type()) * invstd : invstd;
      const at::Tensor slope = means.narrow(0, channels, channels) * invstd;
      of_input = gradient - by_channel(means.narrow(0, 0, channels), input);
      of_input.sub_(deviation * by_channel(slope, input));
      of_input = (of_input * by_channel(scale, input)).to(input.scalar_type());
    }
    const bool has_bias = context->saved_data["has_bias"].toBool();
    return {of_input,
            weight.defined() ? sum_normalized.to(weight.scalar_type()) : at::Tensor(),
            has_bias ? sum.to(weight.scalar_type()) : at::Tensor(),
            at::Tensor(),
            at::Tensor(),
            at::Tensor()};
  }
};

// Updates running statistics as BatchNorm does. The caller must pass the unbiased variance.
void update_running(at::Tensor& running, const at::Tensor& value, double factor) {
  const at::NoGradGuard no_grad;
  running.mul_(1 - factor).add_(value.to(running.scalar_type()), factor);
}

}  // namespace

SyncBatchNormImpl::SyncBatchNormImpl(const torch::nn::BatchNormOptions& options, Mesh mesh)
    : NormImplBase(options), mesh_(std::move(mesh)) {}

void SyncBatchNormImpl::_check_input_dim(const at::Tensor& input) {
  if (input.dim() >= 2 && input.size(1) == options.num_features()) return;
  throw InvalidArgument(
      {.what = fmt::format(
           "SyncBatchNorm of {} features got an input of {} "
           "dimensions{}",
           options.num_features(), input.dim(),
           input.dim() >= 2 ? fmt::format(" with {} channels", input.size(1)) : std::string()),
       .hint = fmt::format("pass an input of shape [N, {}, …]", options.num_features())});
}

at::Tensor SyncBatchNormImpl::forward(const at::Tensor& input) {
  _check_input_dim(input);
  const bool tracks = is_training() && options.track_running_stats();
  double factor = options.momentum().value_or(0.0);
  if (tracks) {
    num_batches_tracked += 1;
    if (!options.momentum()) factor = 1.0 / num_batches_tracked.item<double>();
  }
  // BatchNorm of LibTorch is enough in two cases: in evaluation, where no rank needs data of other
  // ranks, and on a single rank, which has the whole batch.
  if (!is_training() || mesh_.world_size() == 1) {
    return torch::nn::functional::detail::batch_norm(
        input, running_mean, running_var, weight, bias,
        is_training() || !options.track_running_stats(), factor, options.eps());
  }
  const BatchStatistics batch = statistics_of_ranks(input, mesh_);
  if (tracks) {
    update_running(running_mean, batch.mean, factor);
    update_running(running_var, batch.variance * (batch.count / (batch.count - 1)), factor);
  }
  const at::ScalarType type = computed_in(input);
  const auto if_defined = [](const at::Tensor& tensor) {
    return tensor.defined() ? std::optional(tensor) : std::nullopt;
  };
  return Normalize::apply(input, if_defined(weight), if_defined(bias), batch.mean.to(type),
                          batch.variance.to(type),
                          c10::make_intrusive<Held>(mesh_, batch.count, options.eps()));
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << fmt::format(
      "fsdp::SyncBatchNorm({}, eps={}, momentum={}, affine={}, "
      "track_running_stats={})",
      options.num_features(), options.eps(),
      options.momentum() ? fmt::format("{}", *options.momentum()) : "None", options.affine(),
      options.track_running_stats());
}

}  // namespace fsdp
