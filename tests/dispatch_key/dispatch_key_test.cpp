// Tests the dispatch key that intercepts accesses (libtorch/touch_trap.h) if other code uses the
// same key. This is a separate program, because a process assigns the key only once.
#include <fsdp/engine.h>
#include <fsdp/error.h>
#include <torch/library.h>

#include "libtorch/default_device.h"
#include "libtorch/touch_trap.h"
#include "support/torch_ranks.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

// Registers a fallback as torchdistx did (TORCH_LIBRARY_IMPL(_, DeferredInit, m)). It remains
// registered while the result exists.
torch::Library library_that_takes_the_key() {
  torch::Library library = MAKE_TORCH_LIBRARY_IMPL(_, DeferredInit);
  library.fallback(torch::CppFunction::makeFallthrough());
  return library;
}

// Imitates a LibTorch that has its own kernel for the key, but only for aten::neg.
template <class Kernel>
torch::Library kernel_for_the_key(Kernel kernel) {
  torch::Library library = MAKE_TORCH_LIBRARY_IMPL(aten, DeferredInit);
  library.impl("neg", std::move(kernel));
  return library;
}

void check_refused(const std::function<void()>& call, const std::string& cause) {
  CAPTURE(cause);
  try {
    call();
    FAIL_CHECK("nothing was refused");
  } catch (const StateError& error) {
    CAPTURE(error.text().cause);
    CHECK(error.code() == ExitCode::kInternal);
    CHECK(error.text().what ==
          "cannot intercept LibTorch's operators; Options::units, models built on a GPU and plans "
          "need this");
    CHECK(error.text().cause.starts_with(cause));
    CHECK(error.text().hint == "make the layers fsdp::Unit<Block>, and build the model on the CPU");
  }
}

class CountsTouches final : public touch_trap::Listener {
 public:
  bool before(const touch_trap::Touch& /*touch*/) override {
    ++count;
    return false;
  }
  void after(const touch_trap::Touch& /*touch*/, std::span<const at::Tensor> /*of*/) override {}
  void failed(const touch_trap::Touch& /*touch*/, c10::Error& /*error*/) override {}
  int count = 0;
};

}  // namespace

// This must be the first case, because the engine keeps the key after it has registered it.
TEST_CASE("where another library has taken the dispatch key, who needs it is refused by name") {
  run_torch_ranks(1, [](Mesh mesh) {
    torch::nn::Sequential layers(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4));
    const Options options{.units = by_type<torch::nn::Linear>()};
    {
      const torch::Library other = library_that_takes_the_key();
      for (int attempt = 0; attempt < 2; ++attempt) {
        const std::string cause =
            "another library uses the dispatch key DeferredInit: Tried to register multiple "
            "backend fallbacks for the same dispatch key DeferredInit; previous registration ";
        check_refused([&] { const Engine engine(layers, mesh, options); }, cause);
        check_refused([&] { const DefaultDevice device(at::kMeta); }, cause);
      }
      // An engine that does not need the key works.
      const DefaultDevice of_the_host(at::kCPU);
      Unit<torch::nn::Linear> unit(4, 4);
      const Engine engine(unit, mesh);
      unit(torch::ones({2, 4})).sum().backward();
    }
    // The refused attempts must have had no effect.
    Engine engine(layers, mesh, options);
    engine.forward([&] { return layers->forward(torch::ones({2, 4})).sum(); }).backward();
    CHECK(engine.measure_gradients().norm() > 0);
    CHECK_THROWS_WITH_AS(library_that_takes_the_key(),
                         doctest::Contains("previous registration fsdp"), c10::Error);
  });
}

TEST_CASE("a LibTorch that treats the key otherwise is found out before anything relies on it") {
  const std::string cause =
      "this LibTorch does not call the fallback of the dispatch key DeferredInit as the engine "
      "needs it";
  static CountsTouches touches;
  {
    const touch_trap::Unseen passes_operators_by;
    check_refused([&] { touch_trap::arm(touches); }, cause);
  }
  {
    const torch::Library computes =
        kernel_for_the_key([](const at::Tensor& x) { return at::full_like(x, -1); });
    check_refused([&] { touch_trap::arm(touches); }, cause);
  }
  {
    const torch::Library has_none = kernel_for_the_key(
        [](const at::Tensor& x) -> at::Tensor { TORCH_CHECK(false, "no kernel for ", x.sizes()); });
    check_refused([&] { touch_trap::arm(touches); }, cause + ": no kernel for [1]");
  }
  touch_trap::arm(touches);  // LibTorch is unchanged again
  CHECK(touches.count == 0);
}
