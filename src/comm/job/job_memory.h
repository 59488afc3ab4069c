// The memory that a job's processes of one host share. It consists of anonymous files, which the
// system frees when the last process ends, however it ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/descriptor.h"
#include "comm/job/control_segment.h"

namespace fsdp {

// The descriptors of the control segment and of the heaps, one heap per rank of the host.
struct JobDescriptors {
  Descriptor control;
  std::vector<Descriptor> heaps;
};

// Creates the files for the ranks `local` of one host, in a job of `world_size` ranks, and sets the
// files' sizes. The files are sealed, so that no process can shrink a
// file that other processes have mapped. Heaps are sparse: each is as large as this machine's
// memory, but only pages that were touched exist. Errors: DeviceError if the system cannot create
// the files.
JobDescriptors create_job_files(int world_size, RankRange local);
// Creates the files of a job whose ranks are all on one host.
inline JobDescriptors create_job_files(int world_size) {
  return create_job_files(world_size, {0, world_size});
}

// A mapped file. The destructor unmaps it.
class Mapping {
 public:
  // Maps the file. Errors: DeviceError, which names `what`, if the system cannot map the file.
  Mapping(const Descriptor& file, int64_t bytes, const char* what);
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&&) = delete;
  ~Mapping();

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* data_;
  int64_t bytes_;
};

// The job's memory as one process sees it. All of it is mapped once at the start.
class JobMemory {
 public:
  // Maps the files of the ranks `local`. Errors: InvalidArgument (78) if they were made for other
  // ranks, or by another version of this library.
  JobMemory(const JobDescriptors& files, int world_size, RankRange local);
  // Maps the files of a job whose ranks are all on one host.
  JobMemory(const JobDescriptors& files, int world_size)
      : JobMemory(files, world_size, {0, world_size}) {}

  ControlSegment control() const { return {control_.data(), world_size_, local_}; }
  // Returns the heap of a local rank. `rank` is its number in the job.
  const Mapping& heap(int rank) const { return heaps_[index_of(rank)]; }
  // Returns the file of a local rank's heap. Callers can map further views of this file.
  int heap_file(int rank) const { return heap_files_[index_of(rank)].get(); }

 private:
  size_t index_of(int rank) const { return static_cast<size_t>(rank - local_.begin); }

  int world_size_;
  RankRange local_;
  Mapping control_;
  std::vector<Mapping> heaps_;
  std::vector<Descriptor> heap_files_;
};

}  // namespace fsdp
