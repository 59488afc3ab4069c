#include "checkpoint/staged_shard.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <utility>

#include "comm/job/job_memory.h"
#include "fsdp/error.h"
#include "io/file_failure.h"
#include "io/shard_writer.h"

namespace fsdp {
namespace {

std::map<std::string, std::string> with_finite(std::map<std::string, std::string> metadata,
                                               bool finite) {
  metadata[std::string(kFinite)] = std::string(1, finite ? '1' : '0');
  return metadata;
}

// Maps a file in memory, which is created with this size or gets this size. All of its pages exist
// afterwards.
Buffer map_memory_file(const std::filesystem::path& path, int64_t bytes) {
  constexpr const char* kWhat = "cannot keep a copy of the state in memory";
  const Descriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) cannot_create(path, errno, kWhat);
  if (::ftruncate(file.get(), bytes) != 0) fail_file(ExitCode::kIoError, kWhat, path, errno);
  // Without this call, a full file system would end the process by a signal at the first access.
  if (const int error = ::posix_fallocate(file.get(), 0, bytes); error != 0) {
    fail_file(ExitCode::kIoError, kWhat, path, error);
  }
  void* memory = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_POPULATE, file.get(), 0);
  if (memory == MAP_FAILED) fail_file(ExitCode::kIoError, kWhat, path, errno);
  return {memory, bytes, [bytes](void* at) { ::munmap(at, static_cast<size_t>(bytes)); }};
}

}  // namespace

int64_t staged_bytes(const ShardContent& content) {
  return shard_start(content.specs, with_finite(content.metadata, true), {}).file_bytes;
}

StagedShard::~StagedShard() {
  if (memory_) engine_.add_memory(MemoryCategory::kCheckpointStaging, -memory_.bytes());
}

void StagedShard::reserve(const ShardContent& content) {
  const int64_t bytes = staged_bytes(content);
  // A file must have the exact size.
  if (is_file() ? memory_.bytes() == bytes : memory_.bytes() >= bytes) return;
  if (memory_) engine_.add_memory(MemoryCategory::kCheckpointStaging, -memory_.bytes());
  memory_ = {};
  engine_.add_memory(MemoryCategory::kCheckpointStaging, bytes);
  try {
    memory_ =
        is_file() ? map_memory_file(path_, bytes) : engine_.context->memory.allocate_staging(bytes);
  } catch (...) {
    engine_.add_memory(MemoryCategory::kCheckpointStaging, -bytes);
    throw;
  }
}

// The header has the same length with both values of kFinite.
void StagedShard::set_start(bool finite) {
  const ShardStart start = shard_start(specs_, with_finite(metadata_, finite), {});
  std::memcpy(memory_.data(), start.bytes.data(), start.bytes.size());
}

void StagedShard::stage(const ShardContent& content) {
  reserve(content);
  specs_ = content.specs;
  metadata_ = content.metadata;
  const ShardStart start = shard_start(specs_, with_finite(metadata_, true), {});
  file_bytes_ = static_cast<size_t>(start.file_bytes);
  offsets_.assign(content.tensors.size(), 0);
  int64_t offset = std::ssize(start.bytes);
  for (const size_t i : start.order) {
    offsets_[i] = offset;
    offset += content.tensors[i].bytes();
  }
  must_be_finite_.clear();
  std::set<MainStateHold*> holds;
  // The copies that must be done before user code runs are issued first, so that the wait for them
  // does not include the others.
  for (const bool at_once : {true, false}) {
    for (size_t i = 0; i < content.tensors.size(); ++i) {
      const ShardTensor& tensor = content.tensors[i];
      const StatePart& part = *tensor.part;
      if ((part.hold == nullptr || part.has_other_writers) != at_once) continue;
      if (part.hold == nullptr) {
        std::memcpy(place_of(i), tensor.data(), static_cast<size_t>(tensor.bytes()));
      } else {
        part.hold->copy(place_of(i), tensor.data(), tensor.bytes());
        holds.insert(part.hold);
      }
      if (!tensor.must_be_finite()) continue;
      must_be_finite_.push_back(
          {reinterpret_cast<const float*>(place_of(i)), static_cast<size_t>(tensor.range.numel)});
    }
    copied_.clear();
    for (MainStateHold* hold : holds) {
      copied_.push_back(hold->end());
      if (at_once) hold->wait();
    }
  }
}

void StagedShard::wait_for_copies() const {
  engine_.context->streams.device.make_current();
  for (const Event& each : copied_) each.synchronize();
}

void StagedShard::check_values() { set_start(std::ranges::all_of(must_be_finite_, are_finite)); }

}  // namespace fsdp
