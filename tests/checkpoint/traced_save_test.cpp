// Compares the calls that RecordedDisk records of a save with those that strace sees of a real one.
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "checkpoint/save_state.h"
#include "checkpoint/support/exact_training.h"
#include "io/found_checkpoints.h"
#include "io/support/recorded_disk.h"
#include "support/run_process.h"
#include "support/scratch_folder.h"
#include "support/torch_ranks.h"

namespace fsdp {
namespace {

using testing::run_process;
using Lines = std::vector<std::string>;

constexpr const char* kFolderVariable = "FSDP_TRACED_FOLDER";

// Saves the checkpoints of steps 1 and 2 on one rank.
void save_traced(Disk& disk, const std::filesystem::path& folder) {
  testing::run_torch_ranks(1, [&](const Mesh& mesh) {
    Unit<testing::ExactPart> model(33, 17);
    Engine engine(model, mesh);
    SGD optimizer(engine, {.lr = 0.5, .momentum = 0.9});
    TrainingState state(engine);
    state.add("optimizer", optimizer);
    for (const int64_t step : {1, 2}) {
      const std::filesystem::path to = folder_of_step(folder, step);
      REQUIRE_FALSE(save_state(parts_of(state), {.folder = to}, {.step = step}, disk).failed());
    }
  });
}

// Removes the random part of temporary names.
std::string without_nonce(const std::string& line) {
  return std::regex_replace(line, std::regex(R"(\.tmp\.[0-9a-f]+-)"), ".tmp.");
}

Lines recorded_lines(const RecordedDisk& disk) {
  Lines lines;
  for (const RecordedCall& call : disk.calls()) {
    std::string line = fmt::format("{} {}", name_of(call.kind), call.path.string());
    if (call.kind == RecordedCall::Kind::kWrite) {
      line += fmt::format(" {} at {}", call.bytes.size(), call.offset_bytes);
    } else if (call.kind == RecordedCall::Kind::kResize) {
      line += fmt::format(" {}", call.offset_bytes);
    } else if (call.kind == RecordedCall::Kind::kRename) {
      line += " " + call.to_name;
    }
    lines.push_back(without_nonce(line));
  }
  return lines;
}

// Returns the successful calls of a trace on paths in `folder`, in the form of recorded_lines().
// Calls that RecordedDisk does not know keep their text.
Lines traced_lines(const std::string& trace, const std::string& folder) {
  const std::vector<std::pair<std::regex, std::string>> forms = {
      {std::regex(R"re(openat\(.*"F/(.*)", .*O_CREAT.*)re"), "create $1"},
      {std::regex(R"re(mkdir\("F/(.*)", .*)re"), "mkdir $1"},
      {std::regex(R"re(fallocate\(\d+<F/(.*)>, 0, 0, (\d+)\).*)re"), "fallocate $1 $2"},
      {std::regex(R"re(pwrite64\(\d+<F/(.*)>, .*, \d+, (\d+)\) += (\d+))re"), "write $1 $3 at $2"},
      {std::regex(R"re(fsync\(\d+<F/?(.*)>\).*)re"), "fsync $1"},
      {std::regex(R"re(rename\("F/(.*)", "F/(?:.*/)?([^/]*)"\).*)re"), "rename $1 $2"},
      {std::regex(R"re((?:unlink|rmdir)\("F/(.*)"\).*)re"), "remove $1"}};
  Lines lines;
  std::istringstream all(trace);
  for (std::string line; std::getline(all, line);) {
    if (line.find(folder) == line.npos || line.find(" = -1 E") != line.npos) continue;
    if (line.find("O_RDONLY") != line.npos) continue;
    line = line.substr(line.find_first_not_of("0123456789 "));  // without the thread's number
    for (size_t at = 0; (at = line.find(folder)) != line.npos;)
      line.replace(at, folder.size(), "F");
    for (const auto& [form, text] : forms) {
      std::smatch match;
      if (!std::regex_match(line, match, form)) continue;
      line = match.format(text);
      break;
    }
    lines.push_back(without_nonce(line));
  }
  return lines;
}

}  // namespace

TEST_CASE("saves under strace, started by the next test" * doctest::skip()) {
  const char* folder = std::getenv(kFolderVariable);
  REQUIRE(folder != nullptr);
  save_traced(Disk::system(), folder);
}

TEST_CASE("the record of a save has the system calls of a real save, in their order") {
  if (run_process({"strace", "-o", "/dev/null", "true"}).code != 0) {
    MESSAGE("skipped: strace cannot trace a process");
    return;
  }
  const ScratchFolder real, recorded, trace;
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  const testing::ProcessResult saved = run_process(
      {"strace", "-f", "-qq", "-y", "-s", "0", "-o", (trace / "calls").string(), "-e",
       "trace=openat,creat,write,writev,pwrite64,pwritev,fallocate,ftruncate,truncate,fsync,"
       "fdatasync,sync_file_range,mkdir,mkdirat,rename,renameat,renameat2,unlink,unlinkat,rmdir,"
       "link,linkat,symlink,symlinkat,copy_file_range",
       self, "--no-skip", "--test-case=saves under strace*"},
      {{kFolderVariable, real.path().string()}, {"ASAN_OPTIONS", "detect_leaks=0"}});
  INFO(saved.out << saved.err);
  REQUIRE(saved.code == 0);
  RecordedDisk disk(recorded.path());
  save_traced(disk, recorded.path());
  const Lines calls = recorded_lines(disk);
  CHECK(calls.size() >= 30);
  CHECK(traced_lines(read_whole(trace / "calls"), real.path().string()) == calls);
}

}  // namespace fsdp
