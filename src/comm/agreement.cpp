#include "fsdp/agreement.h"

#include <fmt/format.h>

#include <chrono>
#include <future>

namespace fsdp {
namespace {

using SteadyClock = std::chrono::steady_clock;

// The longest time for which a rank waits for its own work before it takes part in the next round
// of wait_for_all.
constexpr auto kAnswerEvery = std::chrono::milliseconds(20);
// The time after which a rank whose work is not done warns that the other ranks wait for it.
constexpr auto kPatience = std::chrono::seconds(5);

// Waits until the work of every rank is done. The ranks ask each other in rounds, and each round is
// one all_reduce. A rank takes part in all rounds, even while its work is not done. So the time-out
// of collectives does not limit the work, but a rank that died is still detected.
void wait_for_all(const Mesh& mesh, std::string_view what, const std::future<void>& done) {
  const auto began = SteadyClock::now();
  bool told = false;
  for (bool working = true; working;) {
    const bool ready = done.wait_for(kAnswerEvery) == std::future_status::ready;
    if (!ready && !told && SteadyClock::now() - began > kPatience) {
      told = true;
      mesh.warn({.what = fmt::format("rank {} is still {} after {} s", mesh.job_rank(), what,
                                     kPatience.count()),
                 .cause = "the other ranks wait for this rank"});
    }
    // All ranks get the same maximum, so all leave the loop in the same round.
    working = mesh.max(ready ? 0 : 1, what) != 0;
  }
}

void meet(const Mesh& mesh, std::string_view label) { mesh.max(0, label); }

}  // namespace

RefusedElsewhere::RefusedElsewhere(ExitCode code)
    : Error(code,
            {.what = "another rank ended the job", .hint = "read the error line of that rank"}) {}

Outcome run_on_all_ranks(const Mesh& mesh, std::string_view what, const std::function<void()>& work,
                         const bool* flag) {
  constexpr int64_t kCodes = 256;
  Outcome outcome;
  int64_t verdict = 0;  // 0 or 1: success and the flag; else (world_size - rank) · kCodes + code
  // The destructor of a std::async future waits. So if a peer dies and wait_for_all throws, this
  // rank still completes its own work. For example, a file that is nearly written reaches the disk.
  std::future<void> done = std::async(std::launch::async, work);
  wait_for_all(mesh, what, done);
  try {
    done.get();
    verdict = flag != nullptr && *flag ? 1 : 0;
  } catch (const std::exception& error) {
    outcome.mine = std::current_exception();
    verdict =
        (mesh.world_size() - mesh.rank()) * kCodes + static_cast<int64_t>(exit_code_of(error));
  }
  const int64_t agreed = mesh.max(verdict, "outcome");
  if (agreed < kCodes) {
    outcome.flagged = agreed == 1;
    return outcome;
  }
  outcome.code = static_cast<ExitCode>(agreed % kCodes);
  // Only the lowest failing rank keeps its exception, so that exactly one rank prints the cause.
  if (agreed != verdict) outcome.mine = nullptr;
  return outcome;
}

void throw_on_all_ranks(const Mesh& mesh, const Outcome& outcome) {
  if (!outcome.failed()) return;
  // The rank that throws its error may end the mesh only after all ranks know the outcome. The
  // other ranks leave after this rank, so that a launcher sees this rank fail first.
  if (outcome.mine) {
    meet(mesh, "verdict");
    std::rethrow_exception(outcome.mine);
  }
  try {
    meet(mesh, "verdict");
    meet(mesh, "end");  // the rank that throws never arrives; its abort ends this wait
  } catch (const CommError&) {
  }
  throw RefusedElsewhere(outcome.code);
}

void run_or_throw_on_all_ranks(const Mesh& mesh, std::string_view what,
                               const std::function<void()>& work) {
  throw_on_all_ranks(mesh, run_on_all_ranks(mesh, what, work));
}

}  // namespace fsdp
