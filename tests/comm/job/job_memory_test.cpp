// Tests the memory that the ranks of one host share in a job of several hosts.
#include "comm/job/job_memory.h"

#include <doctest/doctest.h>

#include <cstddef>

#include "fsdp/error.h"

namespace fsdp {
namespace {

TEST_CASE("the memory of a host has the job's rank numbers, and heaps of its own ranks only") {
  const RankRange local{4, 2};
  const JobDescriptors files = create_job_files(9, local);
  CHECK(files.heaps.size() == 2);
  const JobMemory mine(files, 9, local), theirs(files, 9, local);
  CHECK(mine.control().world_size() == 9);
  CHECK(mine.control().local() == local);
  for (const int rank : {4, 5}) {
    *mine.heap(rank).data() = static_cast<std::byte>(rank);
    mine.control().endpoint(3, rank).phase.store(static_cast<uint64_t>(rank));
  }
  for (int rank = 0; rank < 9; ++rank) mine.control().status(rank).pid.store(100 + rank);
  for (const int rank : {4, 5}) {
    CHECK(*theirs.heap(rank).data() == static_cast<std::byte>(rank));
    CHECK(theirs.control().endpoint(3, rank).phase.load() == static_cast<uint64_t>(rank));
  }
  CHECK(mine.heap_file(4) != mine.heap_file(5));
  for (int rank = 0; rank < 9; ++rank)
    CHECK(theirs.control().status(rank).pid.load() == 100 + rank);
}

TEST_CASE("the memory of other ranks than this host's is refused") {
  const JobDescriptors files = create_job_files(8, {4, 2});
  CHECK_THROWS_WITH_AS(JobMemory(files, 6, {4, 2}),
                       "WORLD_SIZE=6, but the job was started with 8 ranks (the job's shared "
                       "memory); hint: use the fsdp-run that was built with this program, and do "
                       "not change WORLD_SIZE, which fsdp-run sets",
                       InvalidArgument);
  CHECK_THROWS_WITH_AS(JobMemory(files, 8, {0, 2}),
                       "this host has ranks 0 to 1, but its memory is for ranks 4 to 5 (the job's "
                       "shared memory); hint: use the fsdp-run that was built with this program, "
                       "and do not change RANK, LOCAL_RANK and LOCAL_WORLD_SIZE, which fsdp-run "
                       "sets",
                       InvalidArgument);
  CHECK_THROWS_AS(JobMemory(files, 8, {4, 1}), InvalidArgument);
}

}  // namespace
}  // namespace fsdp
