// The memory that the processes of a job share. It consists of anonymous files, which the system
// frees when the last process ends, however it ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/descriptor.h"
#include "comm/job/control_segment.h"

namespace fsdp {

// The descriptors of the control segment and of the heaps, one heap per rank.
struct JobDescriptors {
  Descriptor control;
  std::vector<Descriptor> heaps;
};

// Creates the files and sets their sizes. The files are sealed, so that no process can shrink a
// file that other processes have mapped. Heaps are sparse: each is as large as this machine's
// memory, but only pages that were touched exist. Errors: DeviceError if the system cannot create
// the files.
JobDescriptors create_job_files(int world_size);

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
  // Maps the files. Errors: InvalidArgument (78) if they were made for another number of ranks, or
  // by another version of this library.
  JobMemory(const JobDescriptors& files, int world_size);

  ControlSegment control() const { return {control_.data(), static_cast<int>(heaps_.size())}; }
  const Mapping& heap(int rank) const { return heaps_[rank]; }
  // Returns the file of a rank's heap. Callers can map further views of this file.
  int heap_file(int rank) const { return heap_files_[rank].get(); }

 private:
  Mapping control_;
  std::vector<Mapping> heaps_;
  std::vector<Descriptor> heap_files_;
};

}  // namespace fsdp
