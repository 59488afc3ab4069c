// Convolutions: LibTorch lets back-ends that it does not know override two operators; meta is such.
#include <ATen/native/ConvUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/irange.h>

#include <array>

#include "planner/meta/meta_kernels.h"

namespace fsdp {
namespace {

using at::native::ConvBackend;

struct Geometry {
  at::IntArrayRef stride, padding, dilation, output_padding;
  bool transposed;
  int64_t groups;
};

std::vector<int64_t> output_shape(const at::Tensor& input, const at::Tensor& weight,
                                  const Geometry& of) {
  if (of.transposed) {
    return at::native::conv_input_size(input.sizes(), weight.sizes(), of.padding, of.output_padding,
                                       of.stride, of.dilation, of.groups);
  }
  return at::native::conv_output_size(input.sizes(), weight.sizes(), of.padding, of.stride,
                                      of.dilation);
}

at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight,
                       const std::optional<at::Tensor>& /*bias*/, at::IntArrayRef stride,
                       at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                       at::IntArrayRef output_padding, int64_t groups) {
  const Geometry geometry{stride, padding, dilation, output_padding, transposed, groups};
  return at::empty(output_shape(input, weight, geometry), input.options());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& weight,
    at::IntArrayRef /*stride*/, at::IntArrayRef /*padding*/, at::IntArrayRef /*dilation*/,
    bool transposed, at::IntArrayRef /*output_padding*/, int64_t groups,
    std::array<bool, 3> wanted) {
  std::tuple<at::Tensor, at::Tensor, at::Tensor> result;
  if (wanted[0]) std::get<0>(result) = at::empty(input.sizes(), input.options());
  if (wanted[1]) std::get<1>(result) = at::empty(weight.sizes(), weight.options());
  if (wanted[2]) std::get<2>(result) = at::empty({gradient.size(1)}, gradient.options());
  static_cast<void>(transposed);
  static_cast<void>(groups);
  return result;
}

}  // namespace

void add_convolutions(MetaKernels& kernels) {
  kernels.add("convolution_overrideable", convolution);
  kernels.add("convolution_backward_overrideable", convolution_backward);
}

}  // namespace fsdp
