#include <string>

#include "closing/support/program_run.h"
#include "closing/support/random_program.h"
#include "support/run_torch_ranks.h"
#include "support/torch_doctest.h"

using namespace fsdp::testing;

TEST_CASE("random programs give equal lists on all ranks and the plain model's bits") {
  const auto [wanted, first] = fuzz_range(500);
  int64_t ran = 0, invalid = 0, failed = 0, most_seated = 0;
  for (int64_t seed = first; ran < wanted && failed < 5; ++seed) {
    const Program program = random_program(static_cast<uint64_t>(seed));
    if (!is_valid(program)) {
      ++invalid;
      continue;
    }
    const ProgramRun run = run_program(
        program, {.prefetch_units = static_cast<int>(seed % 3),
                  .cpu_offload = seed % 4 == 0,
                  .strategy = kAllStrategies[seed % std::size(kAllStrategies)],
                  .tuning = {.cpu_streams = seed % 2 == 0 ? fsdp::CpuStreamKind::kInline
                                                          : fsdp::CpuStreamKind::kThreaded}});
    if (!run.is_finite) {
      ++invalid;
      continue;
    }
    ++ran;
    most_seated = std::max<int64_t>(most_seated, run.bound);
    if (!run.failure.empty()) ++failed;
    CAPTURE(seed);
    const std::string text = run.failure.empty() ? "" : describe(program);
    CAPTURE(text);
    CHECK(run.failure == "");
  }
  CHECK(ran == wanted);
  CHECK(invalid < wanted / 2);  // a program that plain LibTorch refuses tests nothing
  MESSAGE(ran << " programs, " << invalid
              << " that plain LibTorch refuses or that overflow, at most " << most_seated
              << " units seated at once");
}
