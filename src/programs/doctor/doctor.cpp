#include "programs/doctor/doctor.h"

#include <memory>
#include <utility>

namespace fsdp::doctor {
namespace {

CudaFacts ask_cuda(const GpuSource& source, std::chrono::milliseconds limit) {
  // The facts are shared with the thread. If the thread is stuck, it may still write them, so they
  // are not read.
  const auto told = std::make_shared<CudaFacts>();
  TaskEnd asked = run_within(limit, "asking CUDA about the GPUs",
                             [told, source](const TellStuck&) { *told = gather_cuda(source); });
  if (asked.how != TaskEnd::How::kDone) return {.asked = std::move(asked)};
  told->asked = std::move(asked);
  return *told;
}

LoopbackFacts try_loopback(const GpuSource& source, int ranks, std::chrono::milliseconds limit) {
  return {.ranks = ranks,
          .end = run_within(limit, "the loopback", [source, ranks](const TellStuck& tell_stuck) {
            source.loop_back(ranks, tell_stuck);
          })};
}

}  // namespace

void gather_gpus(Facts& facts, const GpuSource& source, const TimeLimits& limits) {
  facts.cuda = ask_cuda(source, limits.asking);
  if (!why_no_loopback(facts.cuda).empty()) return;
  const auto ranks = static_cast<int>(facts.cuda.gpus.size());
  facts.loopback = try_loopback(source, ranks, limits.loopback);
}

bool is_stuck(const Facts& facts) {
  const auto& master = facts.host.master;
  return (master && master->asked.how == TaskEnd::How::kStuck) ||
         facts.cuda.asked.how == TaskEnd::How::kStuck ||
         facts.loopback.end.how == TaskEnd::How::kStuck;
}

}  // namespace fsdp::doctor
