#include "comm/job/job_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

#include "base/bytes.h"
#include "comm/job/fingerprint.h"
#include "fsdp/error.h"
#include "fsdp/program_text.h"

namespace fsdp {
namespace {

// The smallest size of a heap. A machine with little memory still needs room for staging areas and
// small blocks.
constexpr int64_t kLeastHeapBytes = int64_t{1} << 30;
// Increase this version with every change of the layout that does not change a size.
constexpr uint64_t kLayoutVersion = 9;

// Returns a hash of this library's layout, because fsdp-run and the program may be from different
// builds.
uint64_t layout_mark() {
  const uint64_t mark =
      mix(mix(mix_text(kLayoutVersion, "fsdp job"), sizeof(Endpoint)), sizeof(FailureCell));
  return mix(mark, kStagingBytes);
}

[[noreturn]] void refused(std::string what, int error) {
  throw DeviceError({.what = std::move(what),
                     .where = "shared memory",
                     .cause = std::strerror(error),
                     .hint = "check the limits of memory, address space and open files (ulimit)"});
}

int64_t heap_bytes() {
  const int64_t memory = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  // A heap can be as large as the machine's memory, because addresses and sparse files cost
  // nothing.
  return round_up(std::max(memory, kLeastHeapBytes), 2 << 20);
}

Descriptor create_file(const std::string& name, int64_t bytes) {
  Descriptor file(memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file) refused("memfd_create failed", errno);
  // The file is sealed, because a process that shrinks it would end its peers by SIGBUS.
  if (ftruncate(file.get(), bytes) != 0 ||
      fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    refused(fmt::format("cannot make a shared file of {}", format_bytes(bytes)), errno);
  }
  return file;
}

int64_t bytes_of(const Descriptor& file) {
  struct stat status {};
  if (fstat(file.get(), &status) != 0) {
    throw InvalidArgument(
        {.what = fmt::format("file descriptor {} of the job is not open", file.get()),
         .where = "FSDP_JOB_FDS",
         .cause = std::strerror(errno),
         .hint = "let fsdp-run start the program directly: other processes cannot join the job"});
  }
  return status.st_size;
}

}  // namespace

JobDescriptors create_job_files(int world_size, RankRange local) {
  const int64_t bytes = ControlSegment::bytes_for(world_size, local);
  JobDescriptors files;
  files.control = create_file("fsdp-control", bytes);
  for (int rank = local.begin; local.contains(rank); ++rank) {
    files.heaps.push_back(create_file(fmt::format("fsdp-heap-{}", rank), heap_bytes()));
  }
  const Mapping mapping(files.control, bytes, "the job's shared memory");
  SegmentHeader& header = ControlSegment(mapping.data(), world_size, local).header();
  header.layout = layout_mark();
  header.world_size = world_size;
  header.local_begin = local.begin;
  header.local_count = local.count;
  return files;
}

Mapping::Mapping(const Descriptor& file, int64_t bytes, const char* what) : bytes_(bytes) {
  // The whole file is mapped at once. Pages that were never touched need no memory, and no swap is
  // reserved.
  void* data =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file.get(), 0);
  if (data == MAP_FAILED) {
    refused(fmt::format("cannot map {} ({})", what, format_bytes(bytes)), errno);
  }
  data_ = static_cast<std::byte*>(data);
}

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}

Mapping::~Mapping() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

JobMemory::JobMemory(const JobDescriptors& files, int world_size, RankRange local)
    : world_size_(world_size),
      local_(local),
      // mmap rejects 0 bytes, so one byte of an empty file is mapped, and the checks below reject
      // the file with a clear message.
      control_(files.control, std::max<int64_t>(bytes_of(files.control), 1),
               "the job's shared memory") {
  // The control segment is checked before any heap is mapped, so that nothing else of a foreign job
  // is used.
  const auto foreign = [&](std::string what, std::string_view variables = "WORLD_SIZE") {
    throw InvalidArgument(
        {.what = std::move(what),
         .where = "the job's shared memory",
         .hint = fmt::format("use the fsdp-run that was built with this program, and do not "
                             "change {}, which fsdp-run sets",
                             variables)});
  };
  if (control_.bytes() < int64_t{sizeof(SegmentHeader)})
    foreign("FSDP_JOB_FDS does not name a job of fsdp-run");
  const SegmentHeader& header = control().header();
  if (header.layout != layout_mark()) foreign("another version of fsdp-run started the job");
  if (header.world_size != world_size) {
    foreign(fmt::format("WORLD_SIZE={}, but the job was started with {} ranks", world_size,
                        header.world_size));
  }
  const RankRange started{header.local_begin, header.local_count};
  if (started != local || std::ssize(files.heaps) != local.count) {
    foreign(fmt::format("this host has {}, but its memory is for {}", describe(local),
                        describe(started)),
            "RANK, LOCAL_RANK and LOCAL_WORLD_SIZE");
  }
  for (const Descriptor& heap : files.heaps) {
    heaps_.emplace_back(heap, bytes_of(heap), "the shared memory of a rank");
    // map_ranks maps views of the heap later. By then the caller has closed its descriptors, so
    // they are duplicated.
    heap_files_.emplace_back(fcntl(heap.get(), F_DUPFD_CLOEXEC, 0));
    if (!heap_files_.back())
      refused("cannot duplicate the file descriptor of a rank's shared memory", errno);
  }
}

}  // namespace fsdp
