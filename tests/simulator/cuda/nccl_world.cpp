#include "simulator/cuda/nccl_world.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace fsdp::testing::sim {

using nccl::Comm;
using nccl::Result;

bool NcclMeeting::is_complete() const {
  return std::ranges::none_of(comms, [](const Comm* comm) { return comm == nullptr; });
}

Comm& NcclWorld::usable(Comm* comm) {
  const auto found = std::ranges::find(comms_, comm, &std::unique_ptr<Comm>::get);
  if (found == comms_.end()) throw Misuse("a communicator that nobody has made");
  if (comm->aborted) throw Misuse("a communicator that was aborted");
  if (comm->destroyed) throw Misuse("a communicator that was destroyed");
  const int device = simulation_.host().device;
  if (device != comm->device) {
    throw Misuse(
        fmt::format("a communicator of device {} in a thread of device {}", comm->device, device));
  }
  last_ = comm;
  return *comm;
}

Comm& NcclWorld::add_comm(int rank) {
  comms_.push_back(std::make_unique<Comm>());
  Comm& comm = *comms_.back();
  comm.rank = rank;
  comm.device = simulation_.host().device;
  comm.questions_left = draw();
  last_ = &comm;
  return comm;
}

std::shared_ptr<NcclMeeting> NcclWorld::make_meeting(int size) {
  auto meeting = std::make_shared<NcclMeeting>();
  meeting->number = ++meetings_;
  meeting->size = size;
  meeting->comms.resize(static_cast<size_t>(size));
  return meeting;
}

Comm* NcclWorld::join(int size, uint64_t id, int rank) {
  if (id == 0 || id > ids_) throw Misuse("an id that nobody has made");
  std::shared_ptr<NcclMeeting>& meeting = by_id_[id];
  if (!meeting) meeting = make_meeting(size);
  if (meeting->size != size) {
    throw Misuse(fmt::format("{} ranks, where another rank said {}", size, meeting->size));
  }
  if (rank < 0 || rank >= size) throw Misuse(fmt::format("rank {} of {}", rank, size));
  Comm*& place = meeting->comms[static_cast<size_t>(rank)];
  if (place != nullptr) throw Misuse(fmt::format("two ranks {}", rank));
  Comm& comm = add_comm(rank);
  for (const Comm* other : meeting->comms) {
    if (other != nullptr && other->device == comm.device) throw Misuse("two ranks on one device");
  }
  comm.meeting = meeting;
  place = &comm;
  return place;
}

void NcclWorld::split(Comm& parent, int color, int key, Comm** place) {
  *place = nullptr;
  if (parent.child != nullptr || !parent.meeting || !parent.meeting->is_complete()) {
    throw Misuse("a split of a communicator that is in progress");
  }
  const NcclPost* const last = last_of(parent);
  // NCCL requires that no collective is pending. The results of the last one may be unwritten, but
  // its gate must be open: then all ranks have sent.
  if (last != nullptr && !(last->launched && last->gate->reached)) {
    throw Misuse("a split of a communicator with a collective under way");
  }
  NcclMeeting& meeting = *parent.meeting;
  const size_t number = parent.splits++;
  if (meeting.splits.size() <= number) meeting.splits.resize(number + 1);
  NcclSplit& split = meeting.splits[number];
  Comm& comm = add_comm(-1);
  split.by_rank[parent.rank] = {.color = color, .key = key, .comm = &comm};
  if (std::ssize(split.by_rank) == meeting.size) make_split(meeting, split);
  parent.child = &comm;
  parent.child_place = place;
}

// Returns the state of the child. As in NCCL, the child becomes valid when the parent is no longer
// in progress.
Result NcclWorld::ask_of_split(Comm& parent) {
  Comm& child = *parent.child;
  if (child.stays || !child.meeting) return Result::kInProgress;
  if (child.questions_left > 0) {
    --child.questions_left;
    return Result::kInProgress;
  }
  *parent.child_place = &child;
  parent.child = nullptr;
  return Result::kSuccess;
}

void NcclWorld::make_split(NcclMeeting& parent, NcclSplit& split) {
  std::map<int, std::vector<NcclSplit::Wish>> groups;
  for (int rank = 0; rank < parent.size; ++rank) {
    const NcclSplit::Wish& wish = split.by_rank.at(rank);
    groups[wish.color].push_back(wish);
  }
  for (auto& [color, wishes] : groups) {
    std::ranges::stable_sort(wishes, {}, &NcclSplit::Wish::key);
    const auto meeting = make_meeting(static_cast<int>(wishes.size()));
    for (size_t rank = 0; rank < wishes.size(); ++rank) {
      meeting->comms[rank] = wishes[rank].comm;
      wishes[rank].comm->meeting = meeting;
      wishes[rank].comm->rank = static_cast<int>(rank);
    }
  }
}

bool NcclCollective::is_posted() const {
  return std::ranges::all_of(posts, [](const auto& post) { return post.has_value(); });
}

NcclPost* NcclWorld::last_of(const Comm& comm) const {
  if (comm.posted == 0) return nullptr;
  return &*comm.meeting->collectives[comm.posted - 1]->posts[static_cast<size_t>(comm.rank)];
}

void NcclWorld::post(Comm& comm, std::vector<NcclRequest> requests) {
  if (!comm.meeting || !comm.meeting->is_complete()) {
    throw Misuse("a collective of a communicator that is in progress");
  }
  const NcclPost* const before = last_of(comm);
  if (before != nullptr && !before->launched) {
    throw Misuse("a collective while the one before it is in progress");
  }
  if (comm.finalized) throw Misuse("a collective of a communicator that is finalized");
  if (comm.child != nullptr) throw Misuse("a collective of a communicator that is being split");
  NcclPost post{.stream = &simulation_.stream(requests.front().stream),
                .by = simulation_.host(),
                .questions_left = draw()};
  // The cost is time of the calling thread, and it delays the launch.
  const uint64_t cost = simulation_.options().host_costs.collective_ns;
  if (cost > 0) post.ready_ns = post.by.now_ns += cost;
  for (const NcclRequest& request : requests) {
    if (request.stream != requests.front().stream) throw Misuse("two streams in one group");
  }
  if (post.stream->device != comm.device) throw Misuse("a stream of another device");
  for (NcclRequest& request : requests) request.place = registrations_.place_of(comm, request);
  post.requests = std::move(requests);
  NcclMeeting& meeting = *comm.meeting;
  if (meeting.collectives.size() == comm.posted) {
    meeting.collectives.push_back(std::make_shared<NcclCollective>(meeting.size));
  }
  const auto& collective = meeting.collectives[comm.posted++];
  collective->posts[static_cast<size_t>(comm.rank)] = std::move(post);
  // Compares only with ranks that have posted already. So the rank that posts last reports a
  // mismatch.
  require_alike(meeting, *collective);
  require_no_circle(comm);
}

void NcclWorld::require_alike(const NcclMeeting& meeting, const NcclCollective& collective) const {
  const NcclPost* first = nullptr;
  for (int rank = 0; rank < meeting.size; ++rank) {
    const auto& post = collective.posts[static_cast<size_t>(rank)];
    if (!post) continue;
    if (first == nullptr) first = &*post;
    for (size_t i = 0; i < std::max(first->requests.size(), post->requests.size()); ++i) {
      const auto text = [&](const NcclPost& of) {
        return i < of.requests.size() ? of.requests[i].text() : std::string("no more");
      };
      if (text(*first) == text(*post)) continue;
      throw Misuse(fmt::format("ranks of communicator {} differ in call {} of a group: {}, and {}",
                               meeting.number, i, text(*first), text(*post)));
    }
  }
}

// Throws if this rank waits for another rank, which waits for this rank in another communicator.
void NcclWorld::require_no_circle(const Comm& comm) const {
  const auto waits_for = [&](const Comm& of, int device) {
    const NcclPost* const last = of.meeting ? last_of(of) : nullptr;
    if (last == nullptr || last->launched) return false;
    const NcclCollective& collective = *of.meeting->collectives[of.posted - 1];
    for (int rank = 0; rank < of.meeting->size; ++rank) {
      if (of.meeting->comms[static_cast<size_t>(rank)]->device == device &&
          !collective.posts[static_cast<size_t>(rank)]) {
        return true;
      }
    }
    return false;
  };
  for (const auto& other : comms_) {
    if (other->aborted || other->destroyed || !other->meeting || other->meeting == comm.meeting) {
      continue;
    }
    if (!waits_for(*other, comm.device) || !waits_for(comm, other->device)) continue;
    throw Misuse(fmt::format("devices {} and {} wait for each other, in communicators {} and {}",
                             comm.device, other->device, comm.meeting->number,
                             other->meeting->number));
  }
}

// If a peer has launched a collective that this device has not launched, the peer waits for this
// device.
std::string NcclWorld::waits_for(int device) const {
  for (const auto& comm : comms_) {
    if (comm->device != device || !comm->meeting || comm->aborted || comm->destroyed) continue;
    for (size_t i = 0; i < comm->meeting->collectives.size(); ++i) {
      const auto& posts = comm->meeting->collectives[i]->posts;
      const auto& own = posts[static_cast<size_t>(comm->rank)];
      if (own && own->launched) continue;
      for (size_t rank = 0; rank < posts.size(); ++rank) {
        if (!posts[rank] || !posts[rank]->launched || posts[rank]->aborted) continue;
        return fmt::format("collective {} of communicator {} on device {}", i,
                           comm->meeting->number, comm->meeting->comms[rank]->device);
      }
    }
  }
  return {};
}

// Throws if two devices start their common collectives in different orders. On a device, the
// kernels of several communicators may wait for each other's resources. So such collectives may
// never end.
void NcclWorld::require_same_order(const Comm& comm) {
  for (const Comm* peer : comm.meeting->comms) {
    if (peer->device == comm.device) continue;
    const int low = std::min(peer->device, comm.device), high = std::max(peer->device, comm.device);
    Order& order = orders_[{low, high}];
    std::vector<int>& own = order.launched[comm.device == low ? 0 : 1];
    const std::vector<int>& theirs = order.launched[comm.device == low ? 1 : 0];
    own.push_back(comm.meeting->number);
    if (theirs.size() < own.size() || theirs[own.size() - 1] == own.back()) continue;
    throw Misuse(
        fmt::format("launch {} that devices {} and {} share is of communicator {} on one "
                    "and of {} on the other",
                    own.size(), comm.device, peer->device, own.back(), theirs[own.size() - 1]));
  }
}

void NcclWorld::launch(Comm& comm, const std::shared_ptr<NcclCollective>& collective) {
  require_same_order(comm);
  const int rank = comm.rank, size = comm.meeting->size;
  NcclPost& post = *collective->posts[static_cast<size_t>(rank)];
  post.launched = true;
  post.gate = std::make_shared<Point>(Point{.held = true});
  const bool hangs = hangs_;
  if (hangs) {
    simulation_.count_endless(comm.device, 1);
    ++comm.endless;
  }
  // Copies the sent data, because a peer may receive after this rank has changed its memory.
  const auto send = [this, collective, &post, rank, size, hangs](const Operation& operation) {
    if (post.aborted) return;
    for (const NcclRequest& request : post.requests) {
      const bool sends = request.root < 0 || request.root == rank;
      const int64_t bytes = sends ? request.bytes_sent(size) : 0;
      simulation_.read(operation, request.send, bytes);
      const auto* from = static_cast<const std::byte*>(request.send);
      post.sent.emplace_back(from, from + bytes);
    }
    collective->sent_ns = std::max(collective->sent_ns, post.stream->now_ns);
    if (++collective->sent < size || hangs) return;
    // The last rank that sends opens the gates of all ranks: they all receive at that time.
    for (const auto& each : collective->posts) {
      each->gate->at_ns = collective->sent_ns;
      each->gate->reached = true;
    }
    simulation_.changed().notify_all();
  };
  simulation_.issue(*post.stream, "nccl send", send, post.by);
  post.begun = simulation_.point_of(*post.stream, post.by);
  // Each gate lists the start points of all launched shares. So a host that waits for the gate runs
  // the streams that lead to these points.
  for (auto& each : collective->posts) {
    if (!each || !each->launched) continue;
    if (&*each != &post) each->gate->parts.push_back(post.begun);
    post.gate->parts.push_back(each->begun);
  }
  simulation_.wait(*post.stream, post.gate, post.by);
  const auto receive = [this, collective, &post, rank, size](const Operation& operation) {
    for (size_t i = 0; i < post.requests.size() && !post.aborted; ++i) {
      const NcclRequest& request = post.requests[i];
      const std::vector<std::byte> result = received(*collective, i, rank, size);
      simulation_.touch(operation, request.recv, std::ssize(result), true);
      std::memcpy(request.recv, result.data(), result.size());
    }
  };
  simulation_.issue(*post.stream, "nccl", receive, post.by);
  post.done = simulation_.point_of(*post.stream, post.by);
  simulation_.changed().notify_all();
}

Result NcclWorld::ask(Comm& comm) {
  simulation_.spend(simulation_.options().host_costs.question_ns);
  if (comm.error != Result::kSuccess) return comm.error;
  if (comm.child != nullptr) return ask_of_split(comm);
  if (registrations_.is_under_way(comm)) return registrations_.ask(comm);
  if (comm.stays || !comm.meeting || !comm.meeting->is_complete()) return Result::kInProgress;
  if (comm.questions_left > 0) {
    --comm.questions_left;
    return Result::kInProgress;
  }
  NcclPost* const last = last_of(comm);
  if (last == nullptr || last->launched) {
    const bool waits = comm.finalized && last != nullptr && !last->gate->reached;
    return waits ? Result::kInProgress : Result::kSuccess;
  }
  const auto& collective = comm.meeting->collectives[comm.posted - 1];
  // The first collective makes the connections, so all ranks must have posted it.
  if (comm.posted == 1 && !collective->is_posted()) return Result::kInProgress;
  if (simulation_.host().now_ns < last->ready_ns) return Result::kInProgress;
  if (last->questions_left > 0) {
    --last->questions_left;
    return Result::kInProgress;
  }
  launch(comm, collective);
  return Result::kSuccess;
}

void NcclWorld::finalize(Comm& comm) {
  if (comm.finalized) throw Misuse("a communicator is finalized twice");
  registrations_.require_none(comm);
  comm.finalized = true;
  comm.questions_left = draw();
  wake();
}

void NcclWorld::destroy(Comm& comm) {
  if (!comm.finalized) throw Misuse("a communicator is destroyed that is not finalized");
  const auto stays = [](const Comm* peer) {
    return !peer->finalized && !peer->aborted && !peer->destroyed;
  };
  // As in NCCL, the proxies of a host wait for each other.
  while (comm.meeting && std::ranges::any_of(comm.meeting->comms, stays)) wait();
  comm.destroyed = true;
}

void NcclWorld::abort(Comm& comm) {
  if (inside_[comm.device] > 0) throw Misuse("an abort while a thread is inside another call");
  comm.aborted = true;
  registrations_.forget(comm);
  // The caller must still abort the child, so it gets the child's pointer now.
  if (comm.child != nullptr) *comm.child_place = std::exchange(comm.child, nullptr);
  simulation_.count_endless(comm.device, -std::exchange(comm.endless, 0));
  if (!comm.meeting) return;
  for (const auto& collective : comm.meeting->collectives) {
    auto& post = collective->posts[static_cast<size_t>(comm.rank)];
    if (!post) continue;
    post->aborted = true;
    // The open gate lets the stream continue. The aborted share writes nothing.
    if (post->gate) post->gate->reached = true;
  }
  simulation_.changed().notify_all();
}

void NcclWorld::wait_for_streams(const Comm& comm) {
  if (!comm.meeting) return;
  for (const auto& collective : comm.meeting->collectives) {
    const auto& post = collective->posts[static_cast<size_t>(comm.rank)];
    if (post && post->done) simulation_.host_waits_for(*post->done, "ncclCommAbort");
  }
}

void NcclWorld::break_communicator(int number, int rank, Result result) {
  for (const auto& comm : comms_) {
    if (comm->meeting && comm->meeting->number == number && comm->rank == rank) {
      comm->error = result;
    }
  }
}

std::vector<std::string> NcclWorld::left() const {
  std::vector<std::string> left;
  for (const auto& comm : comms_) {
    if (comm->aborted || comm->destroyed) continue;
    left.push_back(fmt::format("rank {} of communicator {}", comm->rank,
                               comm->meeting ? comm->meeting->number : 0));
  }
  return left;
}

}  // namespace fsdp::testing::sim
