// Implements normalisations on meta tensors. Each normalisation keeps the mean and the reciprocal
// standard deviation of its input for backward.
#include <ATen/Parallel.h>
#include <ATen/native/layer_norm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include <array>
#include <optional>
#include <tuple>

#include "meta/meta_kernels.h"

namespace fsdp {
namespace {

using MaybeTensor = std::optional<at::Tensor>;
using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

bool is_reduced(at::ScalarType type) { return type == at::kBFloat16 || type == at::kHalf; }

// Returns the type of the mean and the deviation. It is fp32 if the input is narrow and the
// parameters are fp32. In all other cases it is the type of the input.
at::ScalarType type_of_statistics(const at::Tensor& input, const MaybeTensor& one,
                                  const MaybeTensor& other = {}) {
  const auto is_wide = [](const MaybeTensor& parameter) {
    return parameter && parameter->defined() && parameter->scalar_type() == at::kFloat;
  };
  const bool mixed = is_reduced(input.scalar_type()) && (is_wide(one) || is_wide(other));
  return mixed ? at::kFloat : input.scalar_type();
}

at::Tensor like_contiguous(const at::Tensor& tensor) {
  return at::empty_like(tensor, at::MemoryFormat::Contiguous);
}

// Returns the number of rows and their length, as the CPU kernels define them.
std::pair<int64_t, int64_t> rows_of(const at::Tensor& input, at::IntArrayRef normalized_shape) {
  int64_t length = 1;
  for (const int64_t size : normalized_shape) length *= size;
  return {length == 0 ? 0 : input.numel() / length, length};
}

Three layer_norm(const at::Tensor& input, at::IntArrayRef normalized_shape,
                 const MaybeTensor& weight, const MaybeTensor& bias, double /*eps*/) {
  at::native::_check_layer_norm_inputs(input, normalized_shape, weight.value_or(at::Tensor()),
                                       bias.value_or(at::Tensor()));
  const auto [rows, length] = rows_of(input, normalized_shape);
  const at::Tensor x = input.contiguous();
  at::Tensor y = like_contiguous(x);
  const auto options = x.options().dtype(type_of_statistics(input, weight, bias));
  std::vector<int64_t> shape(input.sizes().begin(), input.sizes().end() - normalized_shape.size());
  shape.resize(static_cast<size_t>(input.dim()), 1);
  at::Tensor mean = at::empty({rows}, options).view(shape);
  at::Tensor deviation = at::empty({rows}, options).view(shape);
  return {std::move(y), std::move(mean), std::move(deviation)};
}

Three layer_norm_backward(const at::Tensor& gradient, const at::Tensor& input,
                          at::IntArrayRef normalized_shape, const at::Tensor& /*mean*/,
                          const at::Tensor& /*deviation*/, const MaybeTensor& weight,
                          const MaybeTensor& bias, std::array<bool, 3> wanted) {
  const at::Tensor dy = gradient.contiguous();
  const at::Tensor x = input.contiguous();
  const auto [rows, length] = rows_of(input, normalized_shape);
  Three result;
  if (wanted[0]) std::get<0>(result) = like_contiguous(x);
  if (wanted[1]) std::get<1>(result) = like_contiguous(*weight);
  if (wanted[2]) std::get<2>(result) = like_contiguous(*bias);
  if (wanted[1] || wanted[2]) {
    // For the gradients of weight and bias, the CPU kernel allocates one partial sum per thread.
    meta::scratch(2 * at::get_num_threads() * length,
                  x.options().dtype(type_of_statistics(input, weight, bias)));
  }
  return result;
}

Three group_norm(const at::Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias,
                 int64_t batch, int64_t /*channels*/, int64_t /*inner*/, int64_t groups,
                 double /*eps*/) {
  at::Tensor y = at::empty_like(input, input.suggest_memory_format());
  const auto options = input.options().dtype(type_of_statistics(input, weight, bias));
  at::Tensor mean = at::empty({batch, groups}, options);
  at::Tensor deviation = at::empty({batch, groups}, options);
  return {std::move(y), std::move(mean), std::move(deviation)};
}

Three group_norm_backward(const at::Tensor& /*gradient*/, const at::Tensor& input,
                          const at::Tensor& /*mean*/, const at::Tensor& /*deviation*/,
                          const MaybeTensor& weight, int64_t batch, int64_t channels,
                          int64_t /*inner*/, int64_t /*groups*/, std::array<bool, 3> wanted) {
  Three result;
  if (wanted[0]) std::get<0>(result) = at::empty_like(input, input.suggest_memory_format());
  const auto parameter = [&] {
    return weight && weight->defined() ? like_contiguous(*weight)
                                       : at::empty({channels}, input.options());
  };
  if (wanted[1]) std::get<1>(result) = parameter();
  if (wanted[2]) std::get<2>(result) = parameter();
  const bool is_low = is_reduced(input.scalar_type());
  const auto options = input.options().dtype(is_low ? at::kFloat : input.scalar_type());
  meta::scratch(2 * batch * channels, options);
  return result;
}

Three batch_norm(const at::Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias,
                 const MaybeTensor& /*running_mean*/, const MaybeTensor& /*running_var*/,
                 bool training, double /*momentum*/, double /*eps*/) {
  at::Tensor output = at::empty_like(input, input.suggest_memory_format());
  const auto options = input.options().dtype(type_of_statistics(input, weight, bias));
  const int64_t channels = training ? input.size(1) : 0;
  at::Tensor mean = at::empty({channels}, options);
  at::Tensor deviation = at::empty({channels}, options);
  meta::scratch(2 * input.size(1), options);  // scale and offset of each channel
  return {std::move(output), std::move(mean), std::move(deviation)};
}

Three batch_norm_backward(const at::Tensor& /*gradient*/, const at::Tensor& input,
                          const MaybeTensor& weight, const MaybeTensor& /*running_mean*/,
                          const MaybeTensor& /*running_var*/, const MaybeTensor& /*mean*/,
                          const MaybeTensor& /*deviation*/, bool /*training*/, double /*eps*/,
                          std::array<bool, 3> wanted) {
  const auto options = input.options().dtype(type_of_statistics(input, weight));
  Three result;
  if (wanted[0]) std::get<0>(result) = at::empty_like(input, input.suggest_memory_format());
  if (wanted[1]) std::get<1>(result) = at::empty({input.size(1)}, options);
  if (wanted[2]) std::get<2>(result) = at::empty({input.size(1)}, options);
  meta::scratch(input.numel(), input.options());
  return result;
}

// Returns a tensor for a variance. It has the shape of a sum over `dims` and the type of the input.
at::Tensor variance(const at::Tensor& input, at::OptionalIntArrayRef dims,
                    const std::optional<at::Scalar>& /*correction*/, bool keepdim) {
  return at::sum(input, dims, keepdim, input.scalar_type());
}

std::tuple<at::Tensor, at::Tensor> variance_and_mean(
    const at::Tensor& input, at::OptionalIntArrayRef dims,
    const std::optional<at::Scalar>& /*correction*/, bool keepdim) {
  return {at::sum(input, dims, keepdim, input.scalar_type()),
          at::sum(input, dims, keepdim, input.scalar_type())};
}

}  // namespace

void add_norms(MetaKernels& kernels) {
  kernels.add("native_layer_norm", layer_norm);
  kernels.add("native_layer_norm_backward", layer_norm_backward);
  kernels.add("native_group_norm", group_norm);
  kernels.add("native_group_norm_backward", group_norm_backward);
  kernels.add("native_batch_norm", batch_norm);
  kernels.add("native_batch_norm_backward", batch_norm_backward);
  kernels.add("var.correction", variance);
  kernels.add("std.correction", variance);
  kernels.add("var_mean.correction", variance_and_mean);
  kernels.add("std_mean.correction", variance_and_mean);
}

}  // namespace fsdp
