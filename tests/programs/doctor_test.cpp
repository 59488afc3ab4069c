// Runs the program fsdp-doctor as a user does, on any machine.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "comm/store/tcp_socket.h"
#include "support/run_process.h"

namespace fsdp {
namespace {

using testing::Environment;
using testing::ProcessResult;
using testing::run_process;

std::string doctor_program() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "fsdp-doctor";
}

ProcessResult run_doctor(std::vector<std::string> arguments, const Environment& environment = {}) {
  arguments.insert(arguments.begin(), doctor_program());
  return run_process(arguments, environment, std::chrono::seconds(200));
}

// Hides all GPUs from the program.
const Environment kNoGpu{{"CUDA_VISIBLE_DEVICES", "-1"}};

void check_lines(const std::string& text) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    CAPTURE(line);
    CHECK(line.size() <= 100);
    CHECK(line.find('\x1b') == std::string::npos);
  }
}

bool has_line(const std::string& text, const std::string& beginning) {
  return text.find("\n" + beginning) != std::string::npos;
}

TEST_CASE("fsdp-doctor without a GPU ends with 78, and says why and what to do once") {
  for (const auto& arguments : {std::vector<std::string>{}, {"--device", "cuda"}}) {
    const ProcessResult said = run_doctor(arguments, kNoGpu);
    CAPTURE(said.out);
    CAPTURE(said.err);
    CHECK(said.code == 78);
    CHECK(said.out.starts_with("versions       ok     fsdp "));
    CHECK(!has_line(said.out, "GPUs "));  // the error line already reports it
    CHECK(has_line(said.out, "environment    note   CUDA_VISIBLE_DEVICES='-1': it hides all GPUs"));
    check_lines(said.out);
    CHECK(said.err.starts_with("fsdp: error[78] rank 0/1 host "));
    const size_t reason = said.err.find(": no GPU can be used; ");
    CHECK(reason != std::string::npos);
    CHECK(said.err.find("; hint: ", reason) != std::string::npos);
    for (const char* area : {"\ncores ", "\nmemory "}) CHECK(has_line(said.out, area + 1));
    CHECK(said.err.find('\n') == said.err.size() - 1);
  }
}

TEST_CASE("the ranks of fsdp-doctor's loopback meet, and say why they have no GPU") {
  const std::string launcher = std::filesystem::path(doctor_program()).parent_path() / "fsdp-run";
  const ProcessResult said =
      run_process({launcher, "-n", "2", "--", doctor_program(), "--loopback-rank"}, kNoGpu,
                  std::chrono::seconds(200));
  CAPTURE(said.out);
  CAPTURE(said.err);
  CHECK(said.code == 78);
  CHECK(said.err.find("ranks cannot compute on a GPU (device cuda); rank 0: ") !=
        std::string::npos);
}

TEST_CASE("fsdp-doctor --device auto without a GPU is ready on the CPU, and says why") {
  const ProcessResult said = run_doctor({"--device", "auto"}, kNoGpu);
  CAPTURE(said.out);
  CHECK(said.code == 0);
  CHECK(has_line(said.out, "GPUs           note   "));
  CHECK(said.out.ends_with("\n\nready on the CPU\n"));
  CHECK(said.err.empty());
}

TEST_CASE("fsdp-doctor --device cpu looks at no GPU") {
  const ProcessResult said = run_doctor({"--device=cpu"}, {{"NCCL_LAUNCH_ORDER_IMPLICIT", "0"}});
  CAPTURE(said.out);
  CHECK(said.code == 0);
  CHECK(said.out.find("fails") == std::string::npos);
  for (const char* area : {"driver", "GPUs", "cuda:", "/dev/shm", "NCCL"}) {
    CHECK(!has_line(said.out, area));
  }
  CHECK(said.out.ends_with("\n\nready on the CPU\n"));
  CHECK(said.err.empty());
}

TEST_CASE("fsdp-doctor finds limits under which runs fail") {
  const std::string command = "ulimit -f 1000; " + doctor_program() + " --device cpu";
  const ProcessResult said = run_process({"sh", "-c", command});
  CAPTURE(said.out);
  CHECK(said.code == 1);
  CHECK(has_line(said.out, "processes      fails  cannot make a shared file of "));
  CHECK(said.out.ends_with("\n\none finding makes runs fail\n"));
}

TEST_CASE("fsdp-doctor shows what would act on a terminal") {
  Environment environment = kNoGpu;
  environment["NCCL_NET"] = "\x1b[31mred\n" + std::string(200, 'x');
  const ProcessResult said = run_doctor({}, environment);
  CHECK(said.out.find("NCCL_NET='\\x1b[31mred\\x0axxx") != std::string::npos);
  check_lines(said.out);
}

TEST_CASE("fsdp-doctor refuses flags that it does not know, and helps") {
  const ProcessResult wrong_device = run_doctor({"--device", "gpu"});
  CHECK(wrong_device.code == 64);
  CHECK(wrong_device.out.empty());
  CHECK(wrong_device.err.find(
            ": --device cannot be 'gpu' (command line); hint: use cuda, auto or cpu") !=
        std::string::npos);
  for (const auto& arguments : {std::vector<std::string>{"--json"}, {"more"}, {"--device"}}) {
    const ProcessResult refused = run_doctor(arguments);
    CHECK(refused.code == 64);
    CHECK(refused.out.empty());
    CHECK(refused.err.starts_with("fsdp: error[64] rank 0/1 host "));
    CHECK(refused.err.find("hint: see fsdp-doctor --help") != std::string::npos);
  }
  const ProcessResult help = run_doctor({"--help"});
  CHECK(help.code == 0);
  CHECK(help.out.find("--device") != std::string::npos);
  CHECK(help.out.find("78 no GPU can be used") != std::string::npos);
  CHECK(help.err.empty());
  check_lines(help.out);
}

TEST_CASE("fsdp-doctor on two hosts measures the connections, and names a host's own address") {
  const testing::TemporaryDirectory folder;
  const std::string token = folder.path() + "/token", report = folder.path() + "/report.json";
  std::ofstream(token) << std::string(32, 't');
  std::filesystem::permissions(token, std::filesystem::perms(0600));
  const auto listen = [] { return listen_at(find_addresses("127.0.0.1", 0).addresses.front()); };
  const auto port_of = [](const OpenedSocket& opened) {
    return std::to_string(address_of_socket(opened.socket.get()).port());
  };
  const auto start = [&](int host, const std::string& port) {
    return testing::Process({doctor_program(), "--nnodes", "2", "--node-rank", std::to_string(host),
                             "--master-addr", "127.0.0.1", "--master-port", port, "--token-file",
                             token, "--out", report + std::to_string(host)},
                            {{"FSDP_ADDRESS", "127.0.0." + std::to_string(host + 2)}});
  };
  const OpenedSocket held = listen();
  const ProcessResult refused = start(0, port_of(held)).wait();
  CHECK(refused.code == 78);
  CHECK(refused.err.find("set another MASTER_PORT") != std::string::npos);
  const std::string port = port_of(listen());
  auto other = start(1, port), first = start(0, port);
  for (const ProcessResult& said : {first.wait(), other.wait()}) {
    CAPTURE(said.err);
    CHECK(said.code == 0);
    CHECK(said.err.empty());
    CHECK(has_line(said.out, "1      "));
    CHECK(said.out.find("127.0.0.3\n\nfrom ") != std::string::npos);
    CHECK(said.out.ends_with("\n\n2 hosts reach each other\n"));
    check_lines(said.out);
  }
  CHECK(std::filesystem::file_size(report + "0") > 0);
  CHECK(std::filesystem::file_size(report + "1") > 0);
}

TEST_CASE("fsdp-doctor refuses half of the flags for several hosts") {
  for (const auto& arguments : {std::vector<std::string>{"--nnodes", "2"},
                                {"--node-rank", "1"},
                                {"--nnodes", "2", "--master-addr", "a", "--master-port", "1"},
                                {"--nnodes", "2", "--master-addr", "a", "--master-port", "1",
                                 "--no-token", "--token-file", "t"},
                                {"--nnodes", "2", "--node-rank", "2", "--master-addr", "a",
                                 "--master-port", "1", "--no-token"}}) {
    const ProcessResult refused = run_doctor(arguments);
    CAPTURE(refused.err);
    CHECK(refused.code == 64);
    CHECK(refused.err.find("hint: ") != std::string::npos);
  }
}

TEST_CASE("fsdp-doctor that cannot write its lines ends with 74") {
  const ProcessResult full =
      run_process({"sh", "-c", doctor_program() + " --device cpu > /dev/full"});
  CHECK(full.code == 74);
  CHECK(full.err.find("cannot write the findings") != std::string::npos);
}

TEST_CASE("help that cannot be written ends with 74") {
  const std::filesystem::path folder = std::filesystem::path(doctor_program()).parent_path();
  for (const char* program : {"fsdp-doctor", "fsdp-ckpt", "fsdp-ckpt verify", "fsdp-inspect"}) {
    CAPTURE(program);
    const std::string command = (folder / program).string() + " --help";
    CHECK(run_process({"sh", "-c", command}).code == 0);
    const ProcessResult full = run_process({"sh", "-c", command + " > /dev/full"});
    CHECK(full.code == 74);
    CHECK(full.err.find("cannot write the help") != std::string::npos);
  }
}

}  // namespace
}  // namespace fsdp
