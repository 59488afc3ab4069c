// What the simulated NCCL knows: communicators, and what their ranks have posted. Used under
// runtime_mutex(). [Note: simulated collectives] is in simulated_nccl.h.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "comm/nccl/nccl_library.h"
#include "simulator/cuda/nccl_registrations.h"
#include "simulator/cuda/simulation.h"

namespace fsdp::testing::sim {

// A call that NCCL would not survive; why is a report.
struct Misuse : std::runtime_error {
  using runtime_error::runtime_error;
};

// One of a group's calls.
struct NcclRequest {
  fsdp::Operation kind{};
  const void* send = nullptr;
  void* recv = nullptr;
  int64_t count = 0;  // as NCCL counts it
  nccl::DataType type{};
  nccl::RedOp op = nccl::RedOp::kSum;
  int root = -1;
  cudaStream_t stream = nullptr;
  std::string place{};  // where it receives, of a window; empty: in none

  // All but where it lies outside of windows.
  std::string text() const;
  int64_t bytes_sent(int size) const;
  int64_t bytes_received(int size) const;
};

// What one rank has posted.
struct NcclPost {
  std::vector<NcclRequest> requests;
  SimulatedStream* stream = nullptr;
  HostThread by;           // as it was then
  int questions_left = 0;  // until it may be launched
  uint64_t ready_ns = 0;   // by the thread's time
  bool launched = false;
  std::vector<std::vector<std::byte>> sent;  // by request, once the stream has come to it
  std::shared_ptr<const Point> begun;        // it has sent
  std::shared_ptr<Point> gate;               // all have; or it was aborted, and leaves nothing
  std::shared_ptr<const Point> done;         // it has received
  bool aborted = false;
};

struct NcclCollective {
  explicit NcclCollective(int size) : posts(static_cast<size_t>(size)) {}

  std::vector<std::optional<NcclPost>> posts;  // by rank
  int sent = 0;                                // ranks that have
  uint64_t sent_ns = 0;                        // the last of them

  bool is_posted() const;  // by all
};

struct NcclMeeting;

// The wishes of a communicator's ranks about one split of it.
struct NcclSplit {
  struct Wish {
    int color = 0, key = 0;
    nccl::Comm* comm = nullptr;
  };
  std::map<int, Wish> by_rank;
};

// The ranks of one communicator.
struct NcclMeeting {
  int number = 0;  // in the order of their making, from 1
  int size = 0;
  std::vector<nccl::Comm*> comms;  // by rank; null: it has not come yet
  std::vector<std::shared_ptr<NcclCollective>> collectives;
  std::vector<NcclSplit> splits;

  bool is_complete() const;
};

}  // namespace fsdp::testing::sim

// One rank's.
struct fsdp::nccl::Comm {
  std::shared_ptr<fsdp::testing::sim::NcclMeeting> meeting;  // null: of a split, not made yet
  int rank = 0;
  int device = 0;
  int questions_left = 0;  // until it is made, or finalized
  size_t posted = 0, splits = 0;
  Comm* child = nullptr;         // of a split in progress, which the caller gets
  Comm** child_place = nullptr;  // here, when it is made
  bool finalized = false, aborted = false, destroyed = false;
  bool stays = false;  // in progress
  int endless = 0;     // collectives that were launched and never end
  Result error = Result::kSuccess;
};

namespace fsdp::testing::sim {

// What the rank receives by the request, out of what all have sent.
std::vector<std::byte> received(const NcclCollective& collective, size_t request, int rank,
                                int size);

class NcclWorld {
 public:
  NcclWorld(Simulation& simulation, uint32_t seed, int most_questions)
      : simulation_(simulation),
        random_(seed),
        most_questions_(most_questions),
        registrations_(simulation) {}

  // Errors (all that take one): Misuse for a communicator that is gone, was aborted, or is another
  //   device's than the thread's.
  nccl::Comm& usable(nccl::Comm* comm);
  nccl::Comm* join(int size, uint64_t id, int rank);
  // `place` is null until the parent is through.
  void split(nccl::Comm& parent, int color, int key, nccl::Comm** place);
  void post(nccl::Comm& comm, std::vector<NcclRequest> requests);
  // What ncclCommGetAsyncError says; launches what may be.
  nccl::Result ask(nccl::Comm& comm);
  void finalize(nccl::Comm& comm);
  void destroy(nccl::Comm& comm);
  void abort(nccl::Comm& comm);
  // Waits for the streams of its collectives.
  void wait_for_streams(const nccl::Comm& comm);
  NcclRegistrations& registrations() { return registrations_; }

  // From what is launched next on.
  void hang_collectives() { hangs_ = true; }
  // What the last call was about stays in progress.
  void stop_last() {
    if (last_ != nullptr) last_->stays = true;
  }
  void break_communicator(int number, int rank, nccl::Result result);
  // A collective that another device has launched and this one has not; empty: there is none.
  std::string waits_for(int device) const;
  // What is there still, a line each.
  std::vector<std::string> left() const;
  void count_zero_cta() { ++zero_cta_; }
  int zero_cta() const { return zero_cta_; }
  void report(const std::string& text) { simulation_.report("NCCL: " + text); }
  uint64_t next_id() { return ++ids_; }
  // Of the calling thread.
  int device() { return simulation_.host().device; }

  // A thread is inside a call that takes its time.
  class Inside {
   public:
    explicit Inside(NcclWorld& world) : count_(world.inside_[world.device()]) { ++count_; }
    ~Inside() { --count_; }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

   private:
    int& count_;
  };

  // Until somebody wakes those who wait; the runtime is others' meanwhile.
  void wait() { simulation_.changed().wait(runtime_mutex()); }
  void wake() { simulation_.changed().notify_all(); }

 private:
  nccl::Comm& add_comm(int rank);
  nccl::Result ask_of_split(nccl::Comm& parent);
  std::shared_ptr<NcclMeeting> make_meeting(int size);
  void make_split(NcclMeeting& parent, NcclSplit& split);
  void require_alike(const NcclMeeting& meeting, const NcclCollective& collective) const;
  void require_no_circle(const nccl::Comm& comm) const;
  void require_same_order(const nccl::Comm& comm);
  void launch(nccl::Comm& comm, const std::shared_ptr<NcclCollective>& collective);
  // What the rank has posted last; null: nothing.
  NcclPost* last_of(const nccl::Comm& comm) const;
  int draw() {
    return most_questions_ == 0 ? 0 : static_cast<int>(random_() % (most_questions_ + 1));
  }

  Simulation& simulation_;
  std::mt19937 random_;
  const int most_questions_;
  NcclRegistrations registrations_;
  bool hangs_ = false;
  int zero_cta_ = 0;           // communicators
  std::map<int, int> inside_;  // threads, by device
  nccl::Comm* last_ = nullptr;
  // Of two devices: in which order each has launched what both take part in.
  struct Order {
    std::array<std::vector<int>, 2> launched;  // numbers of meetings
  };
  std::map<std::pair<int, int>, Order> orders_;
  int meetings_ = 0;
  uint64_t ids_ = 0;
  std::map<uint64_t, std::shared_ptr<NcclMeeting>> by_id_;
  std::vector<std::unique_ptr<nccl::Comm>> comms_;  // those gone, too
};

}  // namespace fsdp::testing::sim
