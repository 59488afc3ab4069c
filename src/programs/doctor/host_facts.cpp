#include "programs/doctor/host_facts.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <system_error>

#include "comm/shm/job_memory.h"

namespace fsdp::doctor {
namespace {

constexpr std::string_view kOwnNames[] = {"CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING",
                                          "CUDA_MODULE_LOADING", "CUDA_VISIBLE_DEVICES",
                                          "OMP_NUM_THREADS"};

std::optional<int64_t> limit_of(int which) {
  rlimit limit{};
  if (getrlimit(static_cast<__rlimit_resource_t>(which), &limit) != 0) return std::nullopt;
  if (limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return static_cast<int64_t>(limit.rlim_cur);
}

int usable_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (sched_getaffinity(0, sizeof cores, &cores) == 0) return CPU_COUNT(&cores);
  return static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));  // more than the set can name
}

std::string text_of(const char* path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Numbers between dots: "580.65.06".
bool is_version(std::string_view word) {
  const auto is_part = [](char c) {
    return c == '.' || std::isdigit(static_cast<unsigned char>(c)) != 0;
  };
  return word.size() > 2 && word.front() != '.' && word.back() != '.' &&
         word.find('.') != std::string_view::npos && std::ranges::all_of(word, is_part);
}

}  // namespace

SharedFolderFacts gather_shared_folder(const std::filesystem::path& folder) {
  struct statvfs room {};
  if (statvfs(folder.c_str(), &room) != 0) {
    return {.why_none = std::generic_category().message(errno)};
  }
  const auto block = static_cast<int64_t>(room.f_frsize);
  return {.total_bytes = block * static_cast<int64_t>(room.f_blocks),
          .free_bytes = block * static_cast<int64_t>(room.f_bavail)};
}

LimitFacts gather_limits() {
  return {.locked_bytes = limit_of(RLIMIT_MEMLOCK),
          .open_files = limit_of(RLIMIT_NOFILE),
          .processes = limit_of(RLIMIT_NPROC),
          .address_bytes = limit_of(RLIMIT_AS)};
}

// As a launcher makes it and a rank maps it; of two ranks, the fewest that need it.
std::optional<ErrorText> try_job_memory() {
  constexpr int kRanks = 2;
  try {
    const JobMemory memory(create_job_files(kRanks), kRanks);
    return std::nullopt;
  } catch (const Error& error) {
    return error.text();
  }
}

std::vector<Variable> variables_of(const char* const* environment) {
  std::vector<Variable> found;
  for (; *environment != nullptr; ++environment) {
    const std::string_view entry = *environment;
    const size_t sign = entry.find('=');
    const std::string_view name = entry.substr(0, sign);
    if (sign == std::string_view::npos) continue;
    if (!name.starts_with("NCCL_") && std::ranges::find(kOwnNames, name) == std::end(kOwnNames)) {
      continue;
    }
    found.push_back({.name = std::string(name), .value = std::string(entry.substr(sign + 1))});
  }
  std::ranges::sort(found, {}, &Variable::name);
  return found;
}

std::string driver_version_in(std::string_view text) {
  const std::string_view line = text.substr(0, text.find('\n'));
  for (size_t begin = 0; begin < line.size();) {
    const size_t end = std::min(line.find(' ', begin), line.size());
    const std::string_view word = line.substr(begin, end - begin);
    if (is_version(word)) return std::string(word);
    begin = end + 1;
  }
  return {};
}

HostFacts gather_host() {
  return {.driver_module = driver_version_in(text_of("/proc/driver/nvidia/version")),
          .shared_folder = gather_shared_folder("/dev/shm"),
          .job_memory_refusal = try_job_memory(),
          .limits = gather_limits(),
          .cores = usable_cores(),
          .variables = variables_of(environ)};
}

}  // namespace fsdp::doctor
