// Limits what child processes of a test may use.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

namespace fsdp::testing {

// A control group (cgroup) with one limit. It needs the rights of root.
class ControlGroup {
 public:
  // A file of the group and its value, for example {"memory.max", "1000000"}.
  struct Limit {
    std::string file;
    std::string value;
  };
  // Makes a group of the system's version of control groups.
  ControlGroup(const Limit& v1, const Limit& v2) {
    const std::filesystem::path root = "/sys/fs/cgroup";
    const std::filesystem::path controller = root / v1.file.substr(0, v1.file.find('.'));
    const bool is_v1 = std::filesystem::exists(controller);
    folder_ = (is_v1 ? controller : root) / ("fsdp-test-" + std::to_string(::getpid()));
    std::error_code error;
    if (!std::filesystem::create_directory(folder_, error)) return;
    const Limit& limit = is_v1 ? v1 : v2;
    std::ofstream file(folder_ / limit.file);
    file << limit.value << std::flush;
    works_ = file.good();
  }
  ~ControlGroup() {
    std::error_code ignored;
    std::filesystem::remove(folder_, ignored);
  }
  ControlGroup(const ControlGroup&) = delete;
  ControlGroup& operator=(const ControlGroup&) = delete;

  // Returns false if this process may not make the group, or the system has no such limit.
  bool works() const { return works_; }
  // Returns a command for a shell that moves the shell into the group.
  std::string enter() const { return "echo $$ > " + (folder_ / "cgroup.procs").string() + " && "; }

 private:
  std::filesystem::path folder_;
  bool works_ = false;
};

}  // namespace fsdp::testing
