// Tests the property of the fake that other tests need: its CUDA computes the same values as the
// CPU.
#include "support/fake_cuda/fake_cuda.h"

#include "support/torch_ranks.h"

using namespace fsdp::testing;

namespace {

const at::TensorOptions kOnGpu = at::TensorOptions().device(kGpu);

}  // namespace

TEST_CASE("tensors of the fake CUDA stay on it, and have the CPU's values") {
  const at::Tensor host = values({3, 4}, 1), gpu = host.to(kGpu);
  CHECK(gpu.is_cuda());
  CHECK(bit_equal(gpu.cpu(), host));
  const auto same = [&](const at::Tensor& on_gpu, const at::Tensor& on_host) {
    CHECK(on_gpu.device() == kGpu);
    CHECK(bit_equal(on_gpu.cpu(), on_host));
  };
  same(gpu + 1, host + 1);
  same(gpu.t().contiguous().view({2, 6}), host.t().contiguous().view({2, 6}));
  same(at::cat({gpu, gpu}), at::cat({host, host}));
  same(at::linear(gpu, gpu), at::linear(host, host));
  same(torch::arange(5, kOnGpu), torch::arange(5));
  same(gpu.index({at::tensor({0, 2}).to(kGpu)}), host.index({at::tensor({0, 2})}));
  CHECK(gpu.sum().item<float>() == host.sum().item<float>());
  CHECK_THROWS(gpu + host);
}

TEST_CASE("views share their base's memory, and what is written in place is seen") {
  const at::Tensor gpu = torch::zeros({2, 3}, kOnGpu);
  gpu.select(0, 1).fill_(7);
  at::Tensor row = gpu[0];
  row += 2;
  CHECK(gpu.sum().item<float>() == 27);
  CHECK(row.storage().is_alias_of(gpu.storage()));
}

TEST_CASE("backward over the fake CUDA gives the CPU's gradients") {
  const auto gradient = [](at::Device device) {
    const at::Tensor x = values({4, 6}, 2).to(device).requires_grad_();
    const at::Tensor weight = values({6}, 3).to(device);
    at::layer_norm(at::gelu(x), {6}, weight).square().sum().backward();
    return x.grad();
  };
  const at::Tensor on_gpu = gradient(kGpu);
  CHECK(on_gpu.is_cuda());
  CHECK(bit_equal(on_gpu.cpu(), gradient(kCpu)));
}

TEST_CASE("random numbers of the fake CUDA come from a generator of its own") {
  at::manual_seed(5);
  const at::Tensor gpu = torch::randn({8}, kOnGpu);
  const at::Tensor host = torch::randn({8});
  CHECK(bit_equal(gpu.cpu(), host));  // both generators begin with the same seed
  at::manual_seed(5);
  CHECK(bit_equal(torch::randn({8}), host));
}
