#include "programs/doctor/host_facts.h"

#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <sstream>
#include <system_error>
#include <utility>

#include "base/cpu_features.h"
#include "comm/job/job_memory.h"
#include "comm/store/tcp_address.h"

namespace fsdp::doctor {
namespace {

constexpr std::string_view kOwnNames[] = {"CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_DEVICE_ORDER",
                                          "CUDA_LAUNCH_BLOCKING",        "CUDA_MODULE_LOADING",
                                          "CUDA_VISIBLE_DEVICES",        "OMP_NUM_THREADS"};

std::optional<int64_t> limit_of(int which) {
  rlimit limit{};
  if (getrlimit(static_cast<__rlimit_resource_t>(which), &limit) != 0) return std::nullopt;
  if (limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return static_cast<int64_t>(limit.rlim_cur);
}

std::string text_of(const char* path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Returns true for numbers that are separated by dots: "580.65.06".
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

// Returns the bytes that one core copies per second. The buffers are larger than the caches. The
// fastest of several copies counts, because other processes may run at the same time.
double measure_copy() {
  constexpr size_t kBytes = size_t{64} << 20;
  constexpr int kCopies = 5;
  std::vector<char> from(kBytes, 1), to(kBytes, 2);
  double least = std::numeric_limits<double>::max();
  for (int i = 0; i < kCopies; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    std::memcpy(to.data(), from.data(), kBytes);
    // The empty statement uses the memory, so that the compiler cannot remove the copy.
    __asm__ volatile("" : : "r"(to.data()) : "memory");
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    least = std::min(least, took.count());
  }
  return static_cast<double>(kBytes) / least;
}

MemoryFacts gather_memory() {
  MemoryFacts facts{.copied_per_second = measure_copy()};
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {  // "MemTotal:  32768000 kB"
    std::istringstream words(line);
    std::string name;
    int64_t kibibytes = 0;
    words >> name >> kibibytes;
    if (name == "MemTotal:") facts.total_bytes = kibibytes * 1024;
    if (name == "MemAvailable:") facts.free_bytes = kibibytes * 1024;
  }
  return facts;
}

MasterFacts gather_master(const std::string& name, std::chrono::milliseconds limit) {
  // `found` is shared with the thread that resolves the name. If this thread has not ended within
  // the limit, it may still write to `found`, so `found` is not read.
  const auto found = std::make_shared<FoundAddresses>();
  TaskEnd asked = run_within(limit, "resolving MASTER_ADDR",
                             [found, name](const TellStuck&) { *found = find_addresses(name, 0); });
  if (asked.how != TaskEnd::How::kDone) return {.name = name, .asked = std::move(asked)};
  MasterFacts facts{.name = name, .why_none = found->why_none};
  for (const TcpAddress& each : found->addresses) facts.addresses.push_back(each.host());
  return facts;
}

// Creates the shared memory of a job as fsdp-run does, and maps it as a rank does. Returns the
// error, or nothing if there is none. Only a job of two or more ranks needs this memory, so the
// function creates it for two ranks.
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
  constexpr auto kResolver = std::chrono::seconds(10);
  const char* const master = std::getenv("MASTER_ADDR");
  return {
      .driver_module = driver_version_in(text_of("/proc/driver/nvidia/version")),
      .shared_folder = gather_shared_folder("/dev/shm"),
      .job_memory_refusal = try_job_memory(),
      .limits = gather_limits(),
      .cores = usable_cores(),
      .all_cores = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)),
      .container = read_cgroup_limits(),
      .memory = gather_memory(),
      .products = fast_products(),
      .master = master == nullptr ? std::nullopt : std::optional(gather_master(master, kResolver)),
      .variables = variables_of(environ)};
}

}  // namespace fsdp::doctor
