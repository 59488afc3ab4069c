// Tests the facts about LibTorch on which libtorch/torch_compat relies, one by one.
#include "libtorch/torch_compat.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "support/torch_doctest.h"

using namespace fsdp;
using namespace fsdp::torch_compat;

namespace {

constexpr const char* kMessage = "this storage has no seat";

// A parameter that LibTorch has built and that is now a view of a BoundStorage.
struct Bound {
  explicit Bound(at::Tensor plain, DType dtype = DType::kFloat32)
      : parameter(std::move(plain)),
        memory(static_cast<size_t>(parameter.numel()) * 4 + 512),
        storage(parameter.numel() * size_of(dtype) + 512, at::kCPU, kMessage) {
    const at::NoGradGuard no_grad;
    const auto sizes = parameter.sizes().vec(), strides = parameter.strides().vec();
    parameter.set_data(storage.view(dtype, 128, sizes, strides));
    storage.bind(memory.data());
    parameter.fill_(2.0);
  }
  at::Tensor parameter;
  std::vector<char> memory;
  BoundStorage storage;
};

}  // namespace

TEST_CASE("every operation on an unseated parameter throws the message") {
  Bound bound(torch::randn({4, 4}, torch::requires_grad()));
  bound.storage.unbind();
  const at::Tensor p = bound.parameter;
  const at::Tensor x = torch::ones({4, 4});
  namespace F = torch::nn::functional;
  const std::vector<std::pair<const char*, std::function<void()>>> operations = {
      {"add", [&] { p + 1; }},
      {"sum", [&] { p.sum(); }},
      {"clone", [&] { p.clone(); }},
      {"norm", [&] { p.norm(); }},
      {"matmul", [&] { x.matmul(p); }},
      {"linear", [&] { F::linear(x, p); }},
      {"layer_norm",
       [&] { F::layer_norm(x, F::LayerNormFuncOptions({4}).weight(p.view({16}).slice(0, 0, 4))); }},
      {"embedding",
       [&] {
         F::embedding(torch::tensor({0, 1}), p);
       }},
      {"conv1d",
       [&] {
         F::conv1d(x.view({1, 4, 4}), p.view({4, 4, 1}));
       }},
      {"attention",
       [&] {
         at::scaled_dot_product_attention(p.view({1, 4, 4}), p.view({1, 4, 4}), x.unsqueeze(0));
       }},
      {"softmax", [&] { p.softmax(-1); }},
      {"item", [&] { p[0][0].item<float>(); }},
      {"print",
       [&] {
         std::ostringstream out;
         out << p;
       }},
      {"equal", [&] { p.equal(x); }},
      {"data_ptr", [&] { p.data_ptr<float>(); }},
      {"const_data_ptr", [&] { p.const_data_ptr(); }},
      {"mutable_data_ptr", [&] { p.mutable_data_ptr(); }},
      {"detach and sum", [&] { p.detach().sum(); }},
      {"storage data", [&] { p.storage().data(); }},
      {"to another type", [&] { p.to(torch::kBFloat16); }},
      {"zero_", [&] { p.detach().zero_(); }},
      {"copy_", [&] { p.detach().copy_(x); }},
      {"copy from", [&] { x.copy_(p.detach()); }},
      {"foreach_norm", [&] { at::_foreach_norm({p.detach()}); }},
      {"save",
       [&] {
         std::ostringstream out;
         torch::save(p, out);
       }},
      {"kaiming_uniform_", [&] { torch::nn::init::kaiming_uniform_(p); }},
  };
  CHECK(operations.size() >= 20);
  for (const auto& [name, run] : operations) {
    CAPTURE(name);
    CHECK_THROWS_WITH(run(), doctest::Contains(kMessage));
  }
}

TEST_CASE("sizes, views and names of an unseated parameter stay usable") {
  Bound bound(torch::randn({4, 3}, torch::requires_grad()));
  bound.storage.unbind();
  CHECK(bound.parameter.sizes() == at::IntArrayRef({4, 3}));
  CHECK(bound.parameter.t().sizes() == at::IntArrayRef({3, 4}));
  CHECK(bound.parameter.nbytes() == 48);
  CHECK(bound.parameter.is_leaf());
  CHECK(bound.parameter.requires_grad());
}

TEST_CASE("binding keeps the tensor's identity, flags and version counter") {
  const at::Tensor plain = torch::randn({2, 2}, torch::requires_grad());
  const auto* identity = plain.unsafeGetTensorImpl();
  const int64_t before = version(plain);
  Bound bound(plain);
  CHECK(bound.parameter.unsafeGetTensorImpl() == identity);
  CHECK(plain.is_leaf());
  CHECK(plain.requires_grad());
  CHECK(version(plain) == before + 1);  // incremented by the fill_ in Bound, not by the binding
  CHECK(bound.storage.owns(plain));
}

TEST_CASE("a seat may move while views and saved tensors exist: they follow") {
  Bound bound(torch::randn({2, 2}, torch::requires_grad()));
  const at::Tensor transposed = bound.parameter.t();
  const at::Tensor x = torch::ones({2, 2}, torch::requires_grad());
  const at::Tensor y = torch::nn::functional::linear(x, bound.parameter).sum();
  bound.storage.unbind();
  CHECK_THROWS_WITH(transposed.sum(), doctest::Contains(kMessage));
  std::vector<char> elsewhere(bound.memory);
  bound.storage.bind(elsewhere.data());
  CHECK(transposed.const_data_ptr() == static_cast<const void*>(elsewhere.data() + 512));
  CHECK(transposed.sum().item<float>() == 8.0F);
  y.backward();
  CHECK(torch::equal(x.grad(), torch::full({2, 2}, 4.0)));
}

TEST_CASE("backward through saved tensors of an unseated parameter throws the message") {
  Bound bound(torch::randn({2, 2}, torch::requires_grad()));
  const at::Tensor x = torch::ones({2, 2}, torch::requires_grad());
  const at::Tensor y = torch::nn::functional::linear(x, bound.parameter).sum();
  bound.storage.unbind();
  CHECK_THROWS_WITH(y.backward(), doctest::Contains(kMessage));
}

TEST_CASE("seating and raw writes leave the version alone, bump_version makes old graphs throw") {
  Bound bound(torch::randn({2, 2}, torch::requires_grad()));
  const at::Tensor x = torch::ones({2, 2}, torch::requires_grad());
  const int64_t before = version(bound.parameter);
  const at::Tensor y = torch::nn::functional::linear(x, bound.parameter).sum();
  bound.storage.unbind();
  bound.storage.bind(bound.memory.data());
  std::memset(bound.memory.data(), 0, bound.memory.size());
  CHECK(version(bound.parameter) == before);
  bump_version(bound.parameter);
  CHECK(version(bound.parameter) == before + 1);
  CHECK_THROWS_WITH(y.backward(), doctest::Contains("modified by an inplace operation"));
}

TEST_CASE("a new message reaches views that exist") {
  Bound bound(torch::randn({2, 2}));
  const at::Tensor view = bound.parameter.slice(0, 1);
  bound.storage.set_message("the engine is gone");
  CHECK_THROWS_WITH(view.sum(), doctest::Contains("the engine is gone"));
}

TEST_CASE("a parameter may be bound with another type, and strides are kept") {
  Bound bound(torch::randn({3, 5}), DType::kBFloat16);
  CHECK((bound.parameter.scalar_type() == torch::kBFloat16));
  CHECK(bound.parameter.sum().item<float>() == 30.0F);
  at::Tensor last = torch::randn({2, 3, 4, 4}).contiguous(at::MemoryFormat::ChannelsLast);
  const std::vector<int64_t> strides = last.strides().vec();
  Bound channels(last);
  CHECK(channels.parameter.strides().vec() == strides);
  CHECK(channels.parameter.is_contiguous(at::MemoryFormat::ChannelsLast));
}

TEST_CASE("parameters of no dimension and of no element can be bound") {
  Bound scalar(torch::tensor(3.0F));
  CHECK(scalar.parameter.item<float>() == 2.0F);
  Bound empty(torch::empty({0, 4}));
  CHECK(empty.parameter.numel() == 0);
}

TEST_CASE("a kept accumulator's pre-hook sees each gradient once, and undefined leaves no grad") {
  struct Hook : torch::autograd::FunctionPreHook {
    explicit Hook(std::vector<at::Tensor>& into) : seen(into) {}
    torch::autograd::variable_list operator()(
        const torch::autograd::variable_list& gradients) override {
      seen.push_back(gradients[0]);
      return {at::Tensor()};
    }
    std::vector<at::Tensor>& seen;
  };
  std::vector<at::Tensor> seen;
  Bound bound(torch::randn({2, 2}, torch::requires_grad()));
  const auto accumulator = torch::autograd::impl::grad_accumulator(bound.parameter);
  accumulator->add_pre_hook(std::make_unique<Hook>(seen));
  const at::Tensor x = torch::ones({2, 2});
  (torch::nn::functional::linear(x, bound.parameter) + x.matmul(bound.parameter)).sum().backward();
  REQUIRE(seen.size() == 1);  // the sum over both uses
  CHECK(torch::equal(seen[0], torch::full({2, 2}, 4.0)));
  CHECK_FALSE(bound.parameter.grad().defined());
}

TEST_CASE("wrapped memory shares its version counter with its parts") {
  std::vector<float> memory(8, 1.0F);
  const at::Tensor whole = wrap(memory.data(), 8, DType::kFloat32, at::kCPU);
  const at::Tensor part = whole.narrow(0, 2, 3);
  const int64_t before = version(whole);
  part.mul_(5);
  CHECK(version(whole) == before + 1);
  CHECK(memory[2] == 5.0F);
  CHECK(memory[5] == 1.0F);
}

TEST_CASE("types translate both ways, and those that the engine does not move have none") {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kFloat64,
                            DType::kInt64, DType::kInt32, DType::kUInt8}) {
    CHECK((dtype_of(scalar_type_of(dtype)) == dtype));
  }
  CHECK_FALSE(dtype_of(at::kComplexFloat).has_value());
  CHECK_FALSE(dtype_of(at::kBool).has_value());
  CHECK_FALSE(dtype_of(at::kFloat8_e4m3fn).has_value());
}

TEST_CASE("memory that is forbidden says why, keeps its bytes, and can be allowed again") {
  const at::Tensor tensor = torch::arange(4, torch::kFloat);
  const at::Tensor view = tensor.narrow(0, 2, 2);
  forbid_access(tensor, "not now");
  CHECK_THROWS_WITH_AS(tensor.data_ptr(), doctest::Contains("not now"), c10::Error);
  CHECK_THROWS_WITH_AS((view.accessor<float, 1>()), doctest::Contains("not now"), c10::Error);
  CHECK(tensor.sizes() == torch::IntArrayRef{4});
  allow_access(tensor);
  CHECK(view[1].item<float>() == 3.0F);
  const at::Tensor planned = torch::zeros({4}, at::kMeta);
  forbid_access(planned, "not now");
  CHECK_THROWS_WITH_AS(planned.data_ptr(), doctest::Contains("not now"), c10::Error);
  CHECK((planned + 1).sizes() == torch::IntArrayRef{4});  // meta kernels access no memory
}
