// The memory that the processes of a job share: anonymous files, which vanish with the last process
// however it dies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/descriptor.h"
#include "comm/job/control_segment.h"

namespace fsdp {

// Descriptors of the control segment and of one heap a rank.
struct JobDescriptors {
  Descriptor control;
  std::vector<Descriptor> heaps;
};

// Creates the files, sized and sealed (no process can shrink what others have mapped). Heaps are
// sparse: each is as large as this machine's memory, but only touched pages exist.
// Errors: DeviceError when the system refuses.
JobDescriptors create_job_files(int world_size);

// A mapped file; unmapped in the destructor.
class Mapping {
 public:
  // Errors: DeviceError naming `what` when the system refuses.
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

// The job's memory as one process sees it: all of it, mapped once at the start.
class JobMemory {
 public:
  // Errors: InvalidArgument (78) if the files were made for another number of ranks or by another
  //   version of this library.
  JobMemory(const JobDescriptors& files, int world_size);

  ControlSegment control() const { return {control_.data(), static_cast<int>(heaps_.size())}; }
  const Mapping& heap(int rank) const { return heaps_[rank]; }
  // Returns the file of a rank's heap, of which further views can be mapped.
  int heap_file(int rank) const { return heap_files_[rank].get(); }

 private:
  Mapping control_;
  std::vector<Mapping> heaps_;
  std::vector<Descriptor> heap_files_;
};

}  // namespace fsdp
