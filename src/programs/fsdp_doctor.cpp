// fsdp-doctor [--device cuda|auto|cpu] checks whether runs can compute on this machine. It prints a
// line for each check. fsdp-doctor --nnodes H …, started on H hosts, measures the connections
// between them.
//
// Exit codes: 0 ready; 1 a finding makes runs fail; 64 wrong usage; 74 the lines cannot be written;
// 78 no GPU can be used.
#include <fmt/format.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/standard_streams.h"
#include "fsdp/error.h"
#include "fsdp/whole_file.h"
#include "programs/command_line.h"
#include "programs/doctor/check_hosts.h"
#include "programs/doctor/doctor.h"
#include "programs/doctor/finding.h"
#include "programs/doctor/host_facts.h"
#include "programs/doctor/loopback_processes.h"
#include "programs/run_alone.h"
#include "programs/standard_output.h"

namespace fsdp::doctor {
namespace {

DeviceKind device_of(const std::string& name) {
  if (name == "cuda") return DeviceKind::kCuda;
  if (name == "auto") return DeviceKind::kAuto;
  if (name == "cpu") return DeviceKind::kCpu;
  refuse_usage(fmt::format("--device cannot be '{}'", name), "use cuda, auto or cpu");
}

struct Command {
  DeviceKind device = DeviceKind::kCuda;
  LaunchEnvironment hosts{};  // world_size: number of hosts; 1 if only this machine is checked
  std::string out;
};

// Adds the flags for several hosts. Returns them.
std::vector<CLI::Option*> add_host_flags(CLI::App& app, Command& command) {
  LaunchEnvironment& hosts = command.hosts;
  return {app.add_option("--nnodes", hosts.world_size,
                         "hosts to start it on at the same time: measures connections")
              ->check(CLI::Range(2, 1024)),
          app.add_option("--node-rank", hosts.rank, "number of this host, from 0")
              ->check(CLI::Range(0, 1023)),
          app.add_option("--master-addr", hosts.master_addr, "address of host 0"),
          app.add_option("--master-port", hosts.master_port, "a free port of host 0")
              ->check(CLI::Range(1, 65535)),
          app.add_option("--token-file", hosts.job_token_file, "a token that all hosts have"),
          app.add_flag("--no-token", hosts.no_token, "for private networks: no token"),
          app.add_option("--out", command.out, "write the measurements to this JSON file")};
}

void require_host_flags(const LaunchEnvironment& hosts) {
  const bool has_one_token = hosts.no_token != !hosts.job_token_file.empty();
  if (hosts.world_size == 1 || hosts.master_addr.empty() || !hosts.master_port || !has_one_token) {
    refuse_usage("a check of several hosts lacks flags",
                 "use --nnodes H --node-rank R --master-addr A --master-port P, and --token-file F "
                 "or --no-token");
  }
  if (hosts.rank >= hosts.world_size) {
    refuse_usage(
        fmt::format("--node-rank {} is not below --nnodes {}", hosts.rank, hosts.world_size),
        "number the hosts from 0");
  }
}

// Returns the command. For --help, prints the help and returns nothing.
std::optional<Command> parse(int argc, char** argv) {
  CLI::App app(
      "Checks whether runs can compute on this machine: one line for each check, with a remedy\n"
      "if it fails.",
      "fsdp-doctor");
  std::string device = "cuda";
  app.add_option("--device", device,
                 "cuda: GPUs; auto: GPUs, else the CPU; cpu: no GPU check [cuda]")
      ->type_name("NAME");
  Command command;
  const std::vector<CLI::Option*> host_flags = add_host_flags(app, command);
  app.footer("Exit codes: 0 ready, 1 a check fails, 64 usage, 78 no GPU can be used.");
  if (!parse_or_help(app, argc, argv, "see fsdp-doctor --help")) return std::nullopt;
  const bool has_host_flag =
      std::ranges::any_of(host_flags, [](const CLI::Option* flag) { return flag->count() > 0; });
  if (has_host_flag) require_host_flags(command.hosts);
  command.device = device_of(device);
  return command;
}

// Returns the version of the loaded LibTorch, "2.15.0". Only the stable C ABI has a function that
// returns it at run time.
std::string torch_version() {
  const uint64_t version = aoti_torch_abi_version();  // one byte for each number, highest first
  return fmt::format("{}.{}.{}", version >> 56U, version >> 48U & 0xffU, version >> 40U & 0xffU);
}

// Measures the connections between hosts, prints them and returns the exit code.
int report_hosts(const Command& command) {
  LaunchEnvironment hosts = command.hosts;
  hosts.own_address = read_launch_environment().own_address;
  hosts.node = std::to_string(hosts.rank);
  if (!command.out.empty()) try_to_write(command.out);
  MeshOptions options{.timeout = std::chrono::seconds(60)};
  options.on_event = [&](const MeshEvent& event) {
    write_error_line(
        warning_line(event.text, {.rank = hosts.rank, .world_size = hosts.world_size}));
  };
  const CheckedHosts checked = check_hosts(hosts, options);
  const int broken = broken_links(checked);
  const std::string result =
      broken == 0 ? fmt::format("{} hosts reach each other", hosts.world_size)
                  : fmt::format("{} of {} connections fail: check firewalls, and FSDP_ADDRESS",
                                broken, checked.links.size());
  print_all("findings", hosts_table(checked) + "\n" + result + "\n");
  if (!command.out.empty()) write_file(command.out, hosts_json(checked));
  return broken == 0 ? 0 : 1;
}

// Prints the findings and returns the exit code. Throws if a GPU is required and none can be used.
int report(const Facts& facts, DeviceKind device) {
  const std::vector<Finding> findings = judge(facts, device);
  const Verdict verdict = verdict_of(facts, device, findings);
  print_all("findings",
            format_findings(findings) + (verdict.line.empty() ? "" : "\n" + verdict.line + "\n"));
  if (verdict.code != static_cast<int>(ExitCode::kConfiguration)) return verdict.code;
  ErrorText why = explain_no_gpu(facts);
  throw InvalidArgument({.what = "no GPU can be used",
                         .where = std::move(why.where),
                         .cause = std::move(why.what),
                         .hint = std::move(why.hint)});
}

int run(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == kRankFlag) return run_alone(run_loopback_rank);
  Facts facts;
  const int code = run_alone([&] {
    const std::optional<Command> command = parse(argc, argv);
    if (!command) return 0;
    if (command->hosts.world_size > 1) return report_hosts(*command);
    const DeviceKind device = command->device;
    facts.versions = {.library = FSDP_VERSION,
                      .torch_built = FSDP_TORCH_VERSION,
                      .torch_loaded = torch_version(),
                      .cuda_built = FSDP_CUDA_VERSION};
    facts.host = gather_host();  // first: CUDA and NCCL may set environment variables
    if (device != DeviceKind::kCpu) gather_gpus(facts, gpus_of_machine());
    return report(facts, device);
  });
  // A return would run destructors, which wait for threads that hang. All lines are already
  // written.
  if (is_stuck(facts)) std::_Exit(code);
  return code;
}

}  // namespace
}  // namespace fsdp::doctor

int main(int argc, char** argv) { return fsdp::doctor::run(argc, argv); }
