#include "base/cgroup.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <string>

namespace fsdp {
namespace {

namespace fs = std::filesystem;

// An imitation of /sys/fs/cgroup.
class Groups {
 public:
  Groups() {
    std::string name = fs::temp_directory_path() / "fsdp-cgroup-XXXXXX";
    REQUIRE(mkdtemp(name.data()) != nullptr);
    root_ = name;
  }
  ~Groups() { fs::remove_all(root_); }
  Groups(const Groups&) = delete;
  Groups& operator=(const Groups&) = delete;

  void write(const fs::path& file, const std::string& text) const {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text;
  }
  CgroupLimits read(std::string_view groups) const { return read_cgroup_limits(root_, groups); }

 private:
  fs::path root_;
};

constexpr int64_t kGiB = int64_t{1} << 30;

TEST_CASE("limits of version 2 are the lowest of a group and of those around it") {
  const Groups groups;
  groups.write("a/memory.max", std::to_string(8 * kGiB) + "\n");
  groups.write("a/memory.current", std::to_string(3 * kGiB) + "\n");
  groups.write("a/memory.stat", "anon 5\ninactive_file " + std::to_string(kGiB) + "\n");
  groups.write("a/cpu.max", "150000 100000\n");
  groups.write("a/b/memory.max", "max\n");
  groups.write("a/b/cpu.max", "max 100000\n");
  for (const char* text : {"0::/a/b\n", "1:name=systemd:/x\n0::/a\n"}) {
    const CgroupLimits limits = groups.read(text);
    CHECK(limits.memory_bytes == 8 * kGiB);
    CHECK(limits.free_bytes == 6 * kGiB);
    CHECK(limits.cores == 1.5);
  }
  groups.write("a/b/memory.max", std::to_string(2 * kGiB));
  groups.write("a/b/memory.current", std::to_string(kGiB / 2));
  CHECK(groups.read("0::/a/b\n").memory_bytes == 2 * kGiB);
  CHECK(groups.read("0::/a/b\n").free_bytes == 3 * kGiB / 2);
}

TEST_CASE("limits of version 1 are found where a container sees its own group") {
  const Groups groups;
  groups.write("memory/memory.limit_in_bytes", std::to_string(4 * kGiB));
  groups.write("memory/memory.usage_in_bytes", std::to_string(5 * kGiB));
  groups.write("cpu,cpuacct/cpu.cfs_quota_us", "400000");
  groups.write("cpu,cpuacct/cpu.cfs_period_us", "100000");
  const CgroupLimits limits = groups.read("4:memory:/docker/1f\n2:cpu,cpuacct:/docker/1f\n0::/\n");
  CHECK(limits.memory_bytes == 4 * kGiB);
  CHECK(limits.free_bytes == 0);
  CHECK(limits.cores == 4.0);
}

TEST_CASE("without a limit there is none") {
  const Groups groups;
  groups.write("memory/memory.limit_in_bytes", "9223372036854771712");
  groups.write("cpu/cpu.cfs_quota_us", "-1");
  groups.write("cpu/cpu.cfs_period_us", "100000");
  for (const char* text : {"4:memory:/\n1:cpu:/\n", "", "no group", "0::/missing"}) {
    const CgroupLimits limits = groups.read(text);
    CHECK(!limits.memory_bytes);
    CHECK(!limits.free_bytes);
    CHECK(!limits.cores);
  }
}

TEST_CASE("the machine of the test tells of its groups") {
  const CgroupLimits limits = read_cgroup_limits();
  CHECK(limits.memory_bytes.value_or(1) > 0);
  CHECK(limits.free_bytes.value_or(0) <= limits.memory_bytes.value_or(0));
  CHECK(limits.cores.value_or(1) > 0);
}

}  // namespace
}  // namespace fsdp
