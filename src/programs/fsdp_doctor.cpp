// fsdp-doctor [--device cuda|auto|cpu] checks whether runs can compute on this machine. It prints a
// line for each check.
//
// Exit codes: 0 ready; 1 a finding makes runs fail; 64 wrong usage; 74 the lines cannot be written;
// 78 no GPU can be used.
#include <fmt/format.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "fsdp/error.h"
#include "programs/doctor/doctor.h"
#include "programs/doctor/finding.h"
#include "programs/doctor/host_facts.h"
#include "programs/doctor/loopback_processes.h"
#include "programs/run_alone.h"

namespace fsdp::doctor {
namespace {

[[noreturn]] void refuse_usage(std::string what, std::string hint) {
  throw InvalidArgument({.what = std::move(what), .where = "command line", .hint = std::move(hint)},
                        ExitCode::kUsage);
}

DeviceKind device_of(const std::string& name) {
  if (name == "cuda") return DeviceKind::kCuda;
  if (name == "auto") return DeviceKind::kAuto;
  if (name == "cpu") return DeviceKind::kCpu;
  refuse_usage(fmt::format("--device cannot be '{}'", name), "use cuda, auto or cpu");
}

// Returns the kind of device that --device selects. For --help, prints the help and returns
// nothing.
std::optional<DeviceKind> parse(int argc, char** argv) {
  CLI::App app(
      "Checks whether runs can compute on this machine: one line for each check, with a remedy\n"
      "if it fails.",
      "fsdp-doctor");
  std::string device = "cuda";
  app.add_option("--device", device,
                 "cuda: GPUs; auto: GPUs, else the CPU; cpu: no GPU check [cuda]")
      ->type_name("NAME");
  app.footer("Exit codes: 0 ready, 1 a check fails, 64 usage, 78 no GPU can be used.");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) refuse_usage(error.what(), "see fsdp-doctor --help");
    app.exit(error);
    return std::nullopt;
  }
  return device_of(device);
}

void print(const std::string& text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (written && std::fflush(stdout) == 0) return;
  throw IoError(ExitCode::kIoError, {.what = "cannot write the findings",
                                     .where = "standard output",
                                     .cause = std::generic_category().message(errno)});
}

// Returns the version of the loaded LibTorch, "2.15.0". Only the stable C ABI has a function that
// returns it at run time.
std::string torch_version() {
  const uint64_t version = aoti_torch_abi_version();  // one byte for each number, highest first
  return fmt::format("{}.{}.{}", version >> 56U, version >> 48U & 0xffU, version >> 40U & 0xffU);
}

// Prints the findings and sets the exit code. Throws if a GPU is required and none can be used.
void report(const Facts& facts, DeviceKind device, int& code) {
  const std::vector<Finding> findings = judge(facts, device);
  const Verdict verdict = verdict_of(facts, device, findings);
  code = verdict.code;
  print(format_findings(findings) + (verdict.line.empty() ? "" : "\n" + verdict.line + "\n"));
  if (code != static_cast<int>(ExitCode::kConfiguration)) return;
  ErrorText why = explain_no_gpu(facts);
  throw InvalidArgument({.what = "no GPU can be used",
                         .where = std::move(why.where),
                         .cause = std::move(why.what),
                         .hint = std::move(why.hint)});
}

int run(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == kRankFlag) return run_alone(run_loopback_rank);
  int code = 0;
  Facts facts;
  const int thrown = run_alone([&] {
    const std::optional<DeviceKind> device = parse(argc, argv);
    if (!device) return;
    // The memory that processes share consists of files. If a file would exceed the limit on file
    // sizes, SIGXFSZ would end the program. With the signal ignored, an error is returned instead,
    // which becomes a finding.
    std::signal(SIGXFSZ, SIG_IGN);
    facts.versions = {.library = FSDP_VERSION,
                      .torch_built = FSDP_TORCH_VERSION,
                      .torch_loaded = torch_version(),
                      .cuda_built = FSDP_CUDA_VERSION};
    facts.host = gather_host();  // first: CUDA and NCCL may set environment variables
    if (device != DeviceKind::kCpu) gather_gpus(facts, gpus_of_machine());
    report(facts, *device, code);
  });
  if (thrown != 0) code = thrown;
  // A return would run destructors, which wait for threads that hang. All lines are already
  // written.
  if (is_stuck(facts)) std::_Exit(code);
  return code;
}

}  // namespace
}  // namespace fsdp::doctor

int main(int argc, char** argv) { return fsdp::doctor::run(argc, argv); }
