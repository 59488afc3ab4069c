// Runs fsdp-plan as a user does.
#include <doctest/doctest.h>
#include <sys/resource.h>

#include <string>
#include <vector>

#include "support/run_program.h"
#include "support/sanitizers.h"

using namespace fsdp::testing;

namespace {

ProcessResult plan(const Words& arguments) {
  Words command{FSDP_PLAN};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return run_process(command, {}, std::chrono::seconds(60));
}

bool says(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

// Checks that exactly one error line exists and has this code.
void check_line(const ProcessResult& result, int code, const std::string& text) {
  INFO(result.out << result.err);
  CHECK(result.code == code);
  CHECK(result.err.starts_with("fsdp: error[" + std::to_string(code) + "] "));
  CHECK(says(result.err, text));
  CHECK(says(result.err, "hint: "));
  CHECK(std::ranges::count(result.err, '\n') == 1);
}

}  // namespace

// Not under sanitizers, because their own memory is many times that of the program.
TEST_CASE("70 billion parameters on 512 ranks are planned in less than 500 MB" *
          doctest::skip(fsdp::kSanitized)) {
  rusage before{}, after{};
  getrusage(RUSAGE_CHILDREN, &before);
  const ProcessResult result = plan({"--model", "llama-70b", "--ranks", "512", "--hosts", "64",
                                     "--seq-len", "384", "--memory", "80GiB"});
  getrusage(RUSAGE_CHILDREN, &after);
  INFO(result.out << result.err);
  CHECK(result.code == 0);
  CHECK(says(result.out, "68.98 billion parameters"));
  // ru_maxrss is the highest value of all children so far. No earlier child may have used more.
  CHECK(before.ru_maxrss < 500'000);
  CHECK(after.ru_maxrss * 1024 < 500'000'000);
}

TEST_CASE("a plan ends with 0 where it fits or nothing is asked, with 78 where it does not") {
  CHECK(plan({"--model", "bert-tiny", "--ranks", "2"}).code == 0);
  const ProcessResult fits = plan({"--model", "bert-tiny", "--ranks", "2", "--memory", "1GiB"});
  CHECK(fits.code == 0);
  CHECK(says(fits.out, "1.0 GiB are enough"));
  CHECK(says(fits.out, "1 is the smallest number of ranks with which it fits"));
  CHECK(fits.err.empty());
  const ProcessResult not_so =
      plan({"--model", "bert-tiny", "--ranks", "2", "--memory-limit", "40MiB"});
  check_line(not_so, 78, "of device memory per rank, but 40.0 MiB are available (bert-tiny)");
  CHECK(says(not_so.err, "hint: use --ranks 16\n"));
  CHECK(!says(not_so.out, "changes, in order of cost"));  // no change saves memory
}

TEST_CASE("what is wrong with a command line is one line") {
  check_line(plan({"--model", "bert-tiny", "--rank", "2"}), 64, "did you mean --ranks?");
  check_line(plan({"--model", "bert-tiny", "--ranks", "6", "--shard", "4"}), 78,
             "6 ranks cannot be divided into groups of 4");
}

TEST_CASE("--help lists flags and presets") {
  const ProcessResult help = plan({"--help"});
  CHECK(help.code == 0);
  for (const char* part :
       {"--model NAME", "--strategy NAME", "--offload BOOL", "llama-70b", "gpt2-xl", "bert-base"}) {
    CAPTURE(std::string(part));
    CHECK(says(help.out, part));
  }
}
