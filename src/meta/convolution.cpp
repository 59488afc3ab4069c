// Implements convolutions on meta tensors. It implements the two operators that LibTorch reserves
// for back-ends outside LibTorch.
#include <ATen/native/ConvUtils.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <optional>

#include "meta/meta_kernels.h"

namespace fsdp {
namespace {

using at::native::ConvBackend;

// The arguments of a convolution that are not tensors.
struct Geometry {
  at::IntArrayRef stride, padding, dilation, output_padding;
  bool transposed = false;
  int64_t groups = 1;

  bool is_strided() const {
    return std::any_of(stride.begin(), stride.end(), [](int64_t step) { return step > 1; });
  }
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

std::vector<c10::SymInt> symbolic(at::IntArrayRef values) { return {values.begin(), values.end()}; }

// Returns the implementation that the CPU would choose.
ConvBackend backend_of(const at::Tensor& input, const at::Tensor& weight,
                       const std::optional<at::Tensor>& bias, const Geometry& of) {
  const std::vector<c10::SymInt> bias_sizes =
      bias && bias->defined() ? symbolic(bias->sizes()) : std::vector<c10::SymInt>{};
  const bool has_bias = !bias_sizes.empty();
  return at::native::select_conv_backend(
      meta::on_cpu(input), meta::on_cpu(weight), meta::on_cpu(bias), symbolic(of.stride),
      symbolic(of.padding), symbolic(of.dilation), of.transposed, symbolic(of.output_padding),
      of.groups, has_bias ? c10::OptionalArrayRef<c10::SymInt>(bias_sizes) : c10::nullopt);
}

bool is_onednn(ConvBackend backend) {
  return backend == ConvBackend::Mkldnn || backend == ConvBackend::MkldnnTranspose;
}

// [Note: oneDNN's layouts] oneDNN stores channels in blocks and pads the last block. A block holds
// as many numbers as a vector register. oneDNN copies its arguments into such blocks and its
// results out of them. This was measured for oneDNN in LibTorch 2.15
// (tests/meta/meta_kernels_test.cpp repeats the measurement). If the input has fewer channels than
// a block holds, forward does not copy the input, and the computation of the weight's gradient
// copies the input into blocks of eight channels.
class Blocks {
 public:
  Blocks(const at::Tensor& input, const at::Tensor& output, const at::Tensor& weight,
         const Geometry& of)
      : input_(input),
        output_(output),
        weight_(weight),
        groups_(input.size(1) == of.groups ? 1 : of.groups),
        is_depthwise_(input.size(1) == of.groups && of.groups > 1) {}

  int64_t in_channels() const { return input_.size(1) / groups_; }
  int64_t out_channels() const { return output_.size(1) / groups_; }
  int64_t input(int64_t block) const { return padded(input_, block); }
  int64_t output(int64_t block) const { return padded(output_, block); }
  int64_t weight(int64_t block, bool pads_in = true) const {
    if (is_depthwise_) return weight_.numel();
    const int64_t in = pads_in ? up(in_channels(), block) : in_channels();
    const int64_t window = weight_.numel() / (weight_.size(0) * weight_.size(1));
    return groups_ * up(out_channels(), block) * in * window;
  }

  // Returns the number of channels in a block.
  int64_t whole() const { return __builtin_cpu_supports("avx512f") ? 16 : 8; }
  bool few_come_in() const { return in_channels() < whole() && !is_depthwise_; }

 private:
  static int64_t up(int64_t channels, int64_t block) {
    return (channels + block - 1) / block * block;
  }
  int64_t padded(const at::Tensor& tensor, int64_t block) const {
    const int64_t channels = tensor.size(1) / groups_;
    return tensor.numel() / channels * up(channels, block);
  }

  const at::Tensor& input_;
  const at::Tensor& output_;
  const at::Tensor& weight_;
  const int64_t groups_;
  const bool is_depthwise_;
};

// An allocator of meta tensors. If the caller drops a tensor at once, its bytes count as scratch.
class Memory {
 public:
  explicit Memory(const at::TensorOptions& options) : options_(options.device(at::kMeta)) {}
  at::Tensor operator()(int64_t numel) const { return at::empty({numel}, options_); }

 private:
  const at::TensorOptions options_;
};

// Returns the number of elements in the im2col matrix of a convolution that oneDNN does not
// compute. A 1×1 window without stride needs no matrix, because the input has the same layout.
int64_t columns_of(const at::Tensor& input, const at::Tensor& output, const at::Tensor& weight,
                   const Geometry& of) {
  const int64_t window = weight.numel() / (weight.size(0) * weight.size(1));
  if (window == 1 && !of.is_strided()) return 0;
  return output.numel() / output.size(1) * input.size(1) * window;
}

at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight,
                       const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
                       at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                       at::IntArrayRef output_padding, int64_t groups) {
  const Geometry of{stride, padding, dilation, output_padding, transposed, groups};
  const std::vector<int64_t> shape = output_shape(input, weight, of);
  const Memory memory(input.options());
  if (!is_onednn(backend_of(input, weight, bias, of))) {
    at::Tensor output = at::empty(shape, input.options());
    meta::scratch(columns_of(input, output, weight, of), input.options());
    return output;
  }
  const at::Tensor shaped = meta::uncounted(shape, input.options());
  const Blocks blocks(input, shaped, weight, of);
  const int64_t block = blocks.whole();
  // The copies of the arguments are freed at the end of this scope, before the output is allocated.
  // oneDNN does the same. The blocked result exists until it is copied out.
  at::Tensor made;
  {
    const at::Tensor source = memory(blocks.few_come_in() ? 0 : blocks.input(block));
    const at::Tensor weights = memory(blocks.weight(block, !blocks.few_come_in()));
    made = memory(blocks.output(block));
  }
  at::Tensor output = at::empty(shape, input.options());
  if (transposed && of.is_strided()) memory(output.numel());  // measured: one more copy
  return output;
}

// The number of scratch elements for one thread. Measured numbers are between 9 and 25 thousand
// elements.
constexpr int64_t kMatrixScratch = 16 * 1024;

at::Tensor gradient_of_input(const at::Tensor& input, const Blocks& blocks, const Geometry& of) {
  const Memory memory(input.options());
  const int64_t block = blocks.whole();
  // oneDNN computes the input gradient of a strided convolution that is not transposed by matrix
  // products. The products need little scratch (kMatrixScratch), and activations are not padded to
  // blocks of channels.
  const bool by_matrices = of.is_strided() && !of.transposed;
  at::Tensor made;
  {
    const at::Tensor gradient = memory(blocks.output(by_matrices ? 1 : block));
    const at::Tensor weights = memory(blocks.weight(block));
    made = memory(by_matrices ? input.numel() : blocks.input(block));
    if (by_matrices) memory(kMatrixScratch);
  }
  at::Tensor result = at::empty(input.sizes(), input.options());
  if (by_matrices) memory(input.numel());  // measured: one more copy
  return result;
}

at::Tensor gradient_of_weight(const at::Tensor& weight, const Blocks& blocks) {
  const Memory memory(weight.options());
  constexpr int64_t kSmall = 8;
  const bool few = blocks.few_come_in();
  const bool as_they_are = few && blocks.in_channels() < 4 && blocks.whole() > kSmall;
  const int64_t block = few && !as_they_are ? kSmall : blocks.whole();
  at::Tensor made;
  {
    const at::Tensor gradient = memory(blocks.output(block));
    const at::Tensor source = memory(as_they_are ? 0 : blocks.input(block));
    made = memory(blocks.weight(block, !as_they_are));
  }
  return at::empty(weight.sizes(), weight.options());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& weight,
    at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
    at::IntArrayRef output_padding, int64_t groups, std::array<bool, 3> wanted) {
  const Geometry of{stride, padding, dilation, output_padding, transposed, groups};
  std::optional<at::Tensor> bias;
  if (wanted[2]) bias = meta::uncounted({gradient.size(1)}, gradient.options());
  const Blocks blocks(input, gradient, weight, of);
  const bool blocked = is_onednn(backend_of(input, weight, bias, of));
  const int64_t columns = blocked ? 0 : columns_of(input, gradient, weight, of);
  // The gradients are allocated in LibTorch's order, which is input, bias, weight, because peaks
  // depend on the order.
  std::tuple<at::Tensor, at::Tensor, at::Tensor> result;
  if (wanted[0]) {
    std::get<0>(result) =
        blocked ? gradient_of_input(input, blocks, of) : at::empty(input.sizes(), input.options());
    meta::scratch(columns, input.options());
  }
  if (wanted[2]) std::get<2>(result) = at::empty({gradient.size(1)}, gradient.options());
  if (wanted[1]) {
    std::get<1>(result) =
        blocked ? gradient_of_weight(weight, blocks) : at::empty(weight.sizes(), weight.options());
    meta::scratch(columns, input.options());
  }
  return result;
}

}  // namespace

void add_convolutions(MetaKernels& kernels) {
  kernels.add("convolution_overrideable", convolution);
  kernels.add("convolution_backward_overrideable", convolution_backward);
}

}  // namespace fsdp
