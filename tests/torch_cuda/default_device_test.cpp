#include "libtorch/default_device.h"

#include <future>
#include <memory>

#include "support/fake_cuda/fake_cuda.h"
#include "support/torch_ranks.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace nn = torch::nn;

namespace {

bool is_default(at::Device device) { return torch::empty({1}).device() == device; }

}  // namespace

TEST_CASE("what factories make without a device is on the default one while it lives") {
  {
    const DefaultDevice device(kGpu);
    for (const at::Tensor& made :
         {torch::empty({2}), torch::zeros({2}), torch::ones({2}, torch::kLong),
          torch::full({2}, 3.0), torch::arange(4), torch::linspace(0, 1, 3), torch::eye(2),
          torch::rand({2}), torch::randn({2}), torch::randint(5, {2}), torch::randperm(3),
          torch::normal(0.0, 1.0, {2}), torch::tril_indices(2, 2), torch::tensor(2.0),
          torch::empty_strided({2, 2}, {1, 2}), torch::randn({2}, torch::requires_grad()),
          at::zeros({2}), at::arange(4)}) {
      CHECK(made.device() == kGpu);
    }
    CHECK(torch::arange(4).sum().item<int64_t>() == 6);
    CHECK(torch::randn({2}, torch::requires_grad()).requires_grad());
    CHECK(torch::ones({2}, torch::kLong).element_size() == 8);
  }
  CHECK(is_default(kCpu));
}

TEST_CASE("what has a place already keeps it under a default device") {
  const at::Tensor host = torch::zeros({2}, kCpu);
  const at::Generator generator = at::detail::createCPUGenerator(3);
  std::vector<float> memory(2);
  const DefaultDevice device(kGpu);
  for (const at::Tensor& made :
       {torch::empty({2}, kCpu), torch::randn({2}, kCpu), torch::zeros_like(host),
        host.new_zeros({2}), host.to(at::kDouble), host.to(at::TensorOptions(at::kHalf)),
        torch::randn({2}, generator), torch::randperm(4, generator),
        torch::empty({2}, at::TensorOptions().pinned_memory(true)),
        torch::from_blob(memory.data(), {2}), torch::tensor({1.0, 2.0}),
        torch::tensor(std::vector<int64_t>{1, 2}), host + 1, at::scalar_to_tensor(2.0)}) {
    CHECK(made.device() == kCpu);
  }
}

TEST_CASE("at::tensor, which the host fills, is made whole under a default device") {
  const DefaultDevice device(kGpu);
  const at::Tensor made = at::tensor({1, 2, 3});
  CHECK(made.device() == kCpu);
  CHECK(made.sum().item<int64_t>() == 6);
}

TEST_CASE("a default device is one thread's, and ends with an exception") {
  try {
    const DefaultDevice device(kGpu);
    CHECK(is_default(kGpu));
    CHECK(std::async(std::launch::async, [] { return is_default(kCpu); }).get());
    throw std::runtime_error("construction failed");
  } catch (const std::runtime_error&) {
  }
  CHECK(is_default(kCpu));
  {
    const DefaultDevice on_cpu(kCpu);
    CHECK(is_default(kCpu));
  }
}

TEST_CASE("LibTorch's own scopes may end before or after a default device") {
  auto inference = std::make_unique<c10::InferenceMode>();
  auto device = std::make_unique<DefaultDevice>(kGpu);
  CHECK(is_default(kGpu));
  device.reset();
  CHECK(is_default(kCpu));
  inference.reset();
  device = std::make_unique<DefaultDevice>(kGpu);
  inference = std::make_unique<c10::InferenceMode>();
  device.reset();
  CHECK(is_default(kCpu));
  inference.reset();  // restores the dispatch keys that it saved
  CHECK(is_default(kCpu));
  CHECK(torch::zeros({2}).sum().item<float>() == 0);
  c10::impl::tls_set_dispatch_key_included(c10::DispatchKey::DeferredInit, false);
}

TEST_CASE("on the CPU no key is included in LibTorch's calls") {
  const DefaultDevice device(kCpu);
  CHECK(!c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::DeferredInit));
}

TEST_CASE("modules are constructed on the default device with their values") {
  at::manual_seed(4);
  const nn::Linear expected(4, 3);
  at::manual_seed(4);  // seeds the GPU's generator too; the fake draws as the CPU does
  const DefaultDevice device(kGpu);
  const nn::Linear linear(4, 3);
  CHECK(linear->weight.device() == kGpu);
  CHECK(linear->weight.requires_grad());
  CHECK(bit_equal(linear->weight.detach().cpu(), expected->weight.detach()));
  const nn::Embedding embedding(nn::EmbeddingOptions(5, 3).padding_idx(2));
  CHECK(embedding->weight.device() == kGpu);
  CHECK(embedding->weight[2].abs().sum().item<float>() == 0);
  const nn::BatchNorm1d norm(4);
  for (const at::Tensor& each : norm->buffers()) CHECK(each.device() == kGpu);
  for (const at::Tensor& each : norm->parameters()) CHECK(each.device() == kGpu);
  const nn::LayerNorm layer_norm(nn::LayerNormOptions({4}));
  CHECK(layer_norm->weight.device() == kGpu);
  nn::Dropout dropout(0.5);
  CHECK(dropout(torch::ones({4})).device() == kGpu);
  const nn::MultiheadAttention attention(4, 2);
  for (const at::Tensor& each : attention->parameters()) CHECK(each.device() == kGpu);
}

TEST_CASE("an LSTM's parameters keep storages of their own where cuDNN would join them") {
  const fake_cuda::WithCudnn cudnn;
  const DefaultDevice device(kGpu);
  const nn::LSTM lstm(4, 3);
  for (const at::Tensor& each : lstm->parameters()) {
    CHECK(each.device() == kGpu);
    CHECK(each.storage().nbytes() == each.nbytes());
  }
}
