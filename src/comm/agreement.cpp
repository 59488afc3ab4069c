#include "fsdp/agreement.h"

#include <fmt/format.h>

#include <chrono>
#include <future>

namespace fsdp {
namespace {

using SteadyClock = std::chrono::steady_clock;

// How long a rank that still works leaves the others without an answer.
constexpr auto kAnswerEvery = std::chrono::milliseconds(20);
// After this long, who waits is told for whom.
constexpr auto kPatience = std::chrono::seconds(5);

void wait_for_all(const Mesh& mesh, std::string_view what, const std::future<void>& done) {
  const auto began = SteadyClock::now();
  bool told = false;
  for (bool working = true; working;) {
    const bool ready = done.wait_for(kAnswerEvery) == std::future_status::ready;
    if (!ready && !told && SteadyClock::now() - began > kPatience) {
      told = true;
      mesh.warn({.what = fmt::format("rank {} is still {} after {} s", mesh.job_rank(), what,
                                     kPatience.count()),
                 .cause = "the other ranks wait for it"});
    }
    working = mesh.max(ready ? 0 : 1, what) != 0;
  }
}

void meet(const Mesh& mesh, std::string_view label) { mesh.max(0, label); }

}  // namespace

RefusedElsewhere::RefusedElsewhere(ExitCode code)
    : Error(code, {.what = "another rank ended the job", .hint = "see that rank's error line"}) {}

Outcome run_on_all_ranks(const Mesh& mesh, std::string_view what,
                         const std::function<void()>& work) {
  constexpr int64_t kCodes = 256;
  Outcome outcome;
  int64_t verdict = 0;  // the largest wins: (ranks from the end) · kCodes + code
  // If a peer dies in the meantime, its destructor waits: what is nearly on disk gets there.
  std::future<void> done = std::async(std::launch::async, work);
  wait_for_all(mesh, what, done);
  try {
    done.get();
  } catch (const std::exception& error) {
    outcome.mine = std::current_exception();
    verdict =
        (mesh.world_size() - mesh.rank()) * kCodes + static_cast<int64_t>(exit_code_of(error));
  }
  const int64_t agreed = mesh.max(verdict, "outcome");
  outcome.code = static_cast<ExitCode>(agreed % kCodes);
  if (agreed != verdict) outcome.mine = nullptr;
  return outcome;
}

void throw_on_all_ranks(const Mesh& mesh, const Outcome& outcome) {
  if (!outcome.failed()) return;
  // The rank that throws the error may end the mesh only when all know the outcome; the others
  // leave after it, so that a launcher sees it fail first.
  if (outcome.mine) {
    meet(mesh, "verdict");
    std::rethrow_exception(outcome.mine);
  }
  try {
    meet(mesh, "verdict");
    meet(mesh, "end");  // the rank that throws does not come
  } catch (const CommError&) {
  }
  throw RefusedElsewhere(outcome.code);
}

void run_or_throw_on_all_ranks(const Mesh& mesh, std::string_view what,
                               const std::function<void()>& work) {
  throw_on_all_ranks(mesh, run_on_all_ranks(mesh, what, work));
}

}  // namespace fsdp
