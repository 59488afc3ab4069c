// State of the simulated NCCL: communicators, and the collectives that their ranks have posted.
// Requires: the caller holds runtime_mutex(). [Note: simulated collectives] is in simulated_nccl.h.
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

// A call that would crash or block in NCCL. The reason becomes a report.
struct Misuse : std::runtime_error {
  using runtime_error::runtime_error;
};

// One call within a group of calls.
struct NcclRequest {
  fsdp::Operation kind{};
  const void* send = nullptr;
  void* recv = nullptr;
  int64_t count = 0;  // in NCCL's unit
  nccl::DataType type{};
  nccl::RedOp op = nccl::RedOp::kSum;
  int root = -1;
  cudaStream_t stream = nullptr;
  std::string place{};  // offset and number of the window that receives; empty: none

  // Returns all fields as text, except addresses outside of windows. The text must be equal on all
  // ranks.
  std::string text() const;
  int64_t bytes_sent(int size) const;
  int64_t bytes_received(int size) const;
};

// A collective that one rank has posted.
struct NcclPost {
  std::vector<NcclRequest> requests;
  SimulatedStream* stream = nullptr;
  HostThread by;           // the thread's state when it posted
  int questions_left = 0;  // queries until the launch
  uint64_t ready_ns = 0;   // earliest launch, by the thread's clock
  bool launched = false;
  std::vector<std::vector<std::byte>> sent;  // by request; filled when the stream reaches it
  std::shared_ptr<const Point> begun;        // reached when this rank's data were read
  std::shared_ptr<Point> gate;               // opens when all ranks' data were read, or by an abort
  std::shared_ptr<const Point> done;         // reached when this rank's results were written
  bool aborted = false;
};

struct NcclCollective {
  explicit NcclCollective(int size) : posts(static_cast<size_t>(size)) {}

  std::vector<std::optional<NcclPost>> posts;  // by rank
  int sent = 0;                                // number of ranks whose data were read
  uint64_t sent_ns = 0;                        // time at which the last rank's data were read

  bool is_posted() const;  // by all ranks
};

struct NcclMeeting;

// The arguments that the ranks of a communicator pass to one split.
struct NcclSplit {
  struct Wish {
    int color = 0, key = 0;
    nccl::Comm* comm = nullptr;
  };
  std::map<int, Wish> by_rank;
};

// The state that the ranks of one communicator share.
struct NcclMeeting {
  int number = 0;  // in the order of creation, from 1
  int size = 0;
  std::vector<nccl::Comm*> comms;  // by rank; null: the rank has not joined yet
  std::vector<std::shared_ptr<NcclCollective>> collectives;
  std::vector<NcclSplit> splits;

  bool is_complete() const;
};

}  // namespace fsdp::testing::sim

// One rank's communicator.
struct fsdp::nccl::Comm {
  std::shared_ptr<fsdp::testing::sim::NcclMeeting> meeting;  // null: the split is not complete yet
  int rank = 0;
  int device = 0;
  int questions_left = 0;  // queries until the communicator is made or finalized
  size_t posted = 0, splits = 0;
  Comm* child = nullptr;         // made by a split in progress; the caller gets it later
  Comm** child_place = nullptr;  // the caller's pointer to it
  bool finalized = false, aborted = false, destroyed = false;
  bool stays = false;  // in progress until it is aborted
  int endless = 0;     // number of launched collectives that never end
  Result error = Result::kSuccess;
};

namespace fsdp::testing::sim {

// Returns the data that `rank` receives by this request. It is computed from the data that all
// ranks sent.
std::vector<std::byte> received(const NcclCollective& collective, size_t request, int rank,
                                int size);

class NcclWorld {
 public:
  NcclWorld(Simulation& simulation, uint32_t seed, int most_questions)
      : simulation_(simulation),
        random_(seed),
        most_questions_(most_questions),
        registrations_(simulation) {}

  // Errors of all functions that take a communicator: Misuse if it was destroyed or aborted, or if
  // it belongs to another device than the thread's current one.
  nccl::Comm& usable(nccl::Comm* comm);
  nccl::Comm* join(int size, uint64_t id, int rank);
  // `*place` is null until the parent is no longer in progress.
  void split(nccl::Comm& parent, int color, int key, nccl::Comm** place);
  void post(nccl::Comm& comm, std::vector<NcclRequest> requests);
  // Returns the result of ncclCommGetAsyncError. If a posted collective may run, launches it.
  nccl::Result ask(nccl::Comm& comm);
  void finalize(nccl::Comm& comm);
  void destroy(nccl::Comm& comm);
  void abort(nccl::Comm& comm);
  // Waits for the streams of the communicator's collectives.
  void wait_for_streams(const nccl::Comm& comm);
  NcclRegistrations& registrations() { return registrations_; }

  // Makes collectives that are launched later hang.
  void hang_collectives() { hangs_ = true; }
  // Keeps the last call's operation in progress.
  void stop_last() {
    if (last_ != nullptr) last_->stays = true;
  }
  void break_communicator(int number, int rank, nccl::Result result);
  // Returns a collective that another device has launched and this device has not. Returns an empty
  // string if none exists.
  std::string waits_for(int device) const;
  // Returns text about the communicators that still exist, one a line.
  std::vector<std::string> left() const;
  void count_zero_cta() { ++zero_cta_; }
  int zero_cta() const { return zero_cta_; }
  void report(const std::string& text) { simulation_.report("NCCL: " + text); }
  uint64_t next_id() { return ++ids_; }
  // Returns the calling thread's device.
  int device() { return simulation_.host().device; }

  // A scope in which a thread is inside a call that blocks.
  class Inside {
   public:
    explicit Inside(NcclWorld& world) : count_(world.inside_[world.device()]) { ++count_; }
    ~Inside() { --count_; }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

   private:
    int& count_;
  };

  // Waits until wake() is called. Releases the runtime's mutex meanwhile.
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
  // Returns the collective that the rank posted last, or null.
  NcclPost* last_of(const nccl::Comm& comm) const;
  int draw() {
    return most_questions_ == 0 ? 0 : static_cast<int>(random_() % (most_questions_ + 1));
  }

  Simulation& simulation_;
  std::mt19937 random_;
  const int most_questions_;
  NcclRegistrations registrations_;
  bool hangs_ = false;
  int zero_cta_ = 0;           // number of communicators
  std::map<int, int> inside_;  // number of threads, by device
  nccl::Comm* last_ = nullptr;
  // For two devices: the order in which each launched the collectives in which both take part.
  struct Order {
    std::array<std::vector<int>, 2> launched;  // numbers of communicators
  };
  std::map<std::pair<int, int>, Order> orders_;
  int meetings_ = 0;
  uint64_t ids_ = 0;
  std::map<uint64_t, std::shared_ptr<NcclMeeting>> by_id_;
  std::vector<std::unique_ptr<nccl::Comm>> comms_;  // including destroyed ones
};

}  // namespace fsdp::testing::sim
