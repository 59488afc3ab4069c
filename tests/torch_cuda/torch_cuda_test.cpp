#include "libtorch/torch_cuda.h"

#include <c10/core/AutogradState.h>

#include <string>
#include <vector>

#include "fsdp/error.h"
#include "support/fake_cuda/fake_cuda.h"
#include "support/torch_doctest.h"
#include "torch_cuda/error_texts.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

using Calls = std::vector<std::string>;

}  // namespace

TEST_CASE("where LibTorch has done without CUDA, a GPU is refused and the CPU is not") {
  torch_cuda::require_cuda(kGpu);
  const fake_cuda::Absent absent;
  torch_cuda::require_cuda(kCpu);
  CHECK_THROWS_WITH_AS(torch_cuda::require_cuda(kGpu), kNoCuda, StateError);
}

TEST_CASE("the current stream is null where it is the default one, and on the CPU") {
  fake_cuda::reset();
  CHECK(torch_cuda::current_stream(kGpu) == nullptr);
  CHECK(torch_cuda::current_stream(kCpu) == nullptr);
  const c10::StreamGuard other(fake_cuda::stream(3));
  CHECK(torch_cuda::current_stream(kGpu) == fake_cuda::stream(3).native_handle());
  CHECK(torch_cuda::current_stream(kCpu) == nullptr);
}

TEST_CASE("a thread leaves the default stream behind what that was given, once") {
  fake_cuda::reset();
  torch_cuda::leave_default_stream(kCpu);
  CHECK(fake_cuda::take_calls() == Calls{});
  torch_cuda::leave_default_stream(kGpu);
  CHECK(fake_cuda::take_calls() == Calls{"stream 1 from the pool", "record event 1 on stream 0",
                                         "stream 1 waits for event 1", "destroy event 1",
                                         "stream 1 is current"});
  CHECK(torch_cuda::current_stream(kGpu) == fake_cuda::stream(1).native_handle());
  torch_cuda::leave_default_stream(kGpu);
  CHECK(fake_cuda::take_calls() == Calls{});
  fake_cuda::reset();
}

TEST_CASE("a GPU's backward runs in the calling thread; the CPU's as it would") {
  c10::AutogradState& state = c10::AutogradState::get_tls_state();
  const bool before = state.get_multithreading_enabled();
  state.set_multithreading_enabled(true);
  torch_cuda::run_backward_here(kCpu);
  CHECK(state.get_multithreading_enabled());
  torch_cuda::run_backward_here(kGpu);
  CHECK(!state.get_multithreading_enabled());
  state.set_multithreading_enabled(before);
}

TEST_CASE("LibTorch's cache is emptied through its own allocator") {
  fake_cuda::reset();
  CHECK(torch_cuda::empty_cache());
  CHECK(fake_cuda::take_calls() == Calls{"empty the cache"});
}

TEST_CASE("ranges of a GPU's profilers are named and nested; on the CPU there are none") {
  fake_cuda::reset();
  {
    const torch_cuda::NamedRange outer(kGpu, "forward", "");
    const torch_cuda::NamedRange on_cpu(kCpu, "gather", "encoder.3");
    const torch_cuda::NamedRange inner(kGpu, "gather", "encoder.3");
  }
  CHECK(fake_cuda::take_calls() ==
        Calls{"push 'forward'", "push 'gather encoder.3'", "pop", "pop"});
}
