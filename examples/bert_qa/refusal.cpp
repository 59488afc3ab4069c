#include "refusal.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <future>

#include "rank_values.h"

namespace bert_qa {
namespace {

using Clock = std::chrono::steady_clock;

// How long a rank that still works leaves the others without an answer.
constexpr auto kAnswerEvery = std::chrono::milliseconds(20);
// After this long, who waits is told for whom.
constexpr auto kPatience = std::chrono::seconds(5);

void wait_for_all(const fsdp::Mesh& mesh, std::string_view what, const std::future<void>& done) {
  const auto began = Clock::now();
  bool told = false;
  for (bool working = true; working;) {
    const bool ready = done.wait_for(kAnswerEvery) == std::future_status::ready;
    if (!ready && !told && Clock::now() - began > kPatience) {
      told = true;
      fmt::print("note: rank {} is still {} after {} s; the run waits for it\n", mesh.rank(), what,
                 kPatience.count());
      std::fflush(stdout);
    }
    working = max_over_ranks(mesh, ready ? 0 : 1, what) != 0;
  }
}

}  // namespace

Outcome work_together(const fsdp::Mesh& mesh, std::string_view what,
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
    verdict = (mesh.world_size() - mesh.rank()) * kCodes +
              static_cast<int64_t>(fsdp::exit_code_of(error));
  }
  const int64_t agreed = max_over_ranks(mesh, verdict, "outcome");
  outcome.code = static_cast<fsdp::ExitCode>(agreed % kCodes);
  if (agreed != verdict) outcome.mine = nullptr;
  return outcome;
}

void end_together(const fsdp::Mesh& mesh, const Outcome& outcome) {
  if (!outcome.failed()) return;
  // The speaker may end the mesh only when all know the verdict; the others leave after it, so that
  // a launcher sees it fail first.
  if (outcome.mine) {
    max_over_ranks(mesh, 0, "verdict");
    std::rethrow_exception(outcome.mine);
  }
  try {
    max_over_ranks(mesh, 0, "verdict");
    max_over_ranks(mesh, 0, "farewell");  // the speaker does not come
  } catch (const fsdp::CommError&) {
  }
  throw SaidElsewhere{outcome.code};
}

}  // namespace bert_qa
