#include "gpu/support/training.h"
#include "simulator/torch/simulated_ranks.h"
#include "simulator/torch/torch_memory.h"

namespace fsdp::testing {
namespace {

// Installs the simulated allocator before main, because trainings on the CPU may run first.
const bool is_taken = [] {
  take_allocator();
  return true;
}();

}  // namespace

TrainingResult train_on_gpu(const Training& training,
                            const std::shared_ptr<SimulatedSession>& session) {
  return train_on(training, on_simulated_gpu(session), [&] {
    int64_t all = 0;
    for (const auto& [what, count] : session->gpu.host_waits()) all += count;
    return all;
  });
}

}  // namespace fsdp::testing
