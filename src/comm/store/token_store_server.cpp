#include "comm/store/token_store_server.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <utility>

#include "fsdp/error.h"

namespace fsdp {
namespace {

constexpr uint64_t kWakeId = 0, kListenerId = 1;
constexpr int kEventsATurn = 256;
constexpr int kAcceptsATurn = 64;  // so that a flood of connections does not delay the ranks
constexpr auto kStrangerStep = std::chrono::milliseconds(100);
constexpr auto kPauseOfAccepts = std::chrono::milliseconds(10);
constexpr auto kAnswerTime = std::chrono::milliseconds(1000);  // for a client with a valid hello

Descriptor required(int descriptor, const char* what) {
  if (descriptor < 0) {
    throw CommError(
        {.what = "the ranks' store cannot start", .where = what, .cause = std::strerror(errno)});
  }
  return Descriptor(descriptor);
}

void control_poll(const Descriptor& epoll, int operation, int socket, uint64_t id,
                  uint32_t events) {
  epoll_event event{.events = events, .data = {.u64 = id}};
  if (epoll_ctl(epoll.get(), operation, socket, &event) != 0) {
    throw CommError({.what = "the ranks' store cannot wait for its clients",
                     .where = "epoll_ctl",
                     .cause = std::strerror(errno)});
  }
}

}  // namespace

TokenStoreServer::TokenStoreServer(Descriptor listener, std::string key,
                                   std::chrono::milliseconds stranger_time)
    : listener_(std::move(listener)),
      key_(std::move(key)),
      stranger_time_(stranger_time),
      epoll_(required(epoll_create1(EPOLL_CLOEXEC), "epoll_create1")),
      wake_(required(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd")) {
  control_poll(epoll_, EPOLL_CTL_ADD, wake_.get(), kWakeId, EPOLLIN);
  control_poll(epoll_, EPOLL_CTL_ADD, listener_.get(), kListenerId, EPOLLIN);
  thread_ = std::thread([this] { run(); });
}

TokenStoreServer::~TokenStoreServer() {
  ends_ = true;
  eventfd_write(wake_.get(), 1);
  thread_.join();
}

void TokenStoreServer::run() {
  try {
    while (!ends_) turn();
  } catch (const std::exception&) {
    // The clients see their connections close, and report that the store is lost.
  }
  clients_.clear();
}

// Returns the time after which turn() must run without an event, in milliseconds.
int TokenStoreServer::time_to_next() const {
  auto time = Clock::duration::max();
  const auto now = Clock::now();
  if (const auto deadline = keys_.next_deadline()) time = *deadline - now;
  if (!silent_.empty() || !challenged_.empty())
    time = std::min<Clock::duration>(time, kStrangerStep);
  if (accepts_from_ != Clock::time_point()) time = std::min(time, accepts_from_ - now);
  if (time == Clock::duration::max()) return -1;
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(time).count();
  return static_cast<int>(std::clamp<int64_t>(ms, 0, 60'000));
}

void TokenStoreServer::turn() {
  std::array<epoll_event, kEventsATurn> events;  // NOLINT: epoll_wait fills it
  const int count = epoll_wait(epoll_.get(), events.data(), kEventsATurn, time_to_next());
  if (accepts_from_ != Clock::time_point() && Clock::now() >= accepts_from_) {
    accepts_from_ = {};
    control_poll(epoll_, EPOLL_CTL_MOD, listener_.get(), kListenerId, EPOLLIN);
  }
  bool accepts = false;
  for (int i = 0; i < count; ++i) {
    const uint64_t id = events[static_cast<size_t>(i)].data.u64;
    accepts |= id == kListenerId;
    if (id > kListenerId) handle(id, events[static_cast<size_t>(i)].events);
  }
  end_waits();
  end_strangers();
  // Last, so that strangers that have spoken in this turn keep their places.
  if (accepts) accept_all();
}

void TokenStoreServer::accept_all() {
  for (int i = 0; i < kAcceptsATurn; ++i) {
    if (challenged_.size() >= kMostChallenged) {
      // Ranks that wait in the system's queue lose nothing; those with a valid hello would.
      const uint64_t oldest = challenged_.front();
      if (Clock::now() - clients_.at(oldest).since < kAnswerTime) return pause_accepts();
      drop(oldest);
    }
    if (!accept_one()) return;
  }
}

// The listener stays ready, so without a pause the thread would use a whole core.
void TokenStoreServer::pause_accepts() {
  accepts_from_ = Clock::now() + kPauseOfAccepts;
  control_poll(epoll_, EPOLL_CTL_MOD, listener_.get(), kListenerId, 0);
}

bool TokenStoreServer::accept_one() {
  Descriptor socket(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!socket) {
    const bool is_full = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
    if (is_full) make_room();
    // Other errors belong to one connection that has ended already.
    return !is_full && errno != EAGAIN && errno != EWOULDBLOCK;
  }
  const int on = 1;
  setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  const uint64_t id = next_id_++;
  Client& client = clients_.try_emplace(id, std::move(socket)).first->second;
  client.since = Clock::now();
  client.events = EPOLLIN;
  client.place = silent_.insert(silent_.end(), id);
  control_poll(epoll_, EPOLL_CTL_ADD, client.connection.socket(), id, client.events);
  ++counts_.accepted;
  counts_.open = static_cast<int64_t>(clients_.size());
  // A rank's hello has usually arrived with the connection.
  receive(id, client);
  if (silent_.size() > kMostSilent) drop(silent_.front());
  return true;
}

// Called if the process has no descriptor left for a connection.
void TokenStoreServer::make_room() {
  if (!raise_descriptor_limit()) pause_accepts();
}

void TokenStoreServer::handle(uint64_t id, uint32_t events) {
  const auto found = clients_.find(id);
  if (found == clients_.end()) return;
  Client& client = found->second;
  if ((events & (EPOLLERR | EPOLLHUP | EPOLLRDHUP)) != 0) return drop(id);
  if ((events & EPOLLOUT) != 0) {
    const int64_t before = client.connection.bytes_out();
    const auto result = client.connection.send_rest();
    counts_.bytes_out += client.connection.bytes_out() - before;
    if (result == StoreConnection::Result::kClosed) return drop(id);
    return watch(id, client);
  }
  if ((events & EPOLLIN) != 0) receive(id, client);
}

void TokenStoreServer::receive(uint64_t id, Client& client) {
  StoreConnection& connection = client.connection;
  const auto stage = connection.stage();
  const int64_t before = connection.bytes_in();
  const auto result = connection.receive(key_);
  counts_.bytes_in += connection.bytes_in() - before;
  if (connection.stage() != stage) move_place(client, stage);
  if (result == StoreConnection::Result::kClosed) return drop(id);
  if (connection.has_request()) serve(id, client);
}

std::list<uint64_t>& TokenStoreServer::places_of(StoreConnection::Stage stage) {
  return stage == StoreConnection::Stage::kSilent ? silent_ : challenged_;
}

// Moves the client on from the place of the stage `before`.
void TokenStoreServer::move_place(Client& client, StoreConnection::Stage before) {
  std::list<uint64_t>& from = places_of(before);
  if (client.connection.stage() == StoreConnection::Stage::kAdmitted) {
    from.erase(client.place);
    ++counts_.admitted;
  } else {
    challenged_.splice(challenged_.end(), from, client.place);
  }
}

void TokenStoreServer::serve(uint64_t id, Client& client) {
  StoreMessage request = client.connection.take_request();
  ++counts_.requests[request.kind - 1];
  try {
    const auto answer = keys_.serve(id, std::move(request), Clock::now());
    if (answer) return reply(id, client, *answer);
  } catch (const CommError&) {  // an invalid request
    return drop(id);
  }
  client.waits = true;
  watch(id, client);
}

void TokenStoreServer::reply(uint64_t id, Client& client, const StoreKeys::Reply& reply) {
  client.waits = false;
  const int64_t before = client.connection.bytes_out();
  const auto result = client.connection.send(reply);
  counts_.bytes_out += client.connection.bytes_out() - before;
  result == StoreConnection::Result::kClosed ? drop(id) : watch(id, client);
}

void TokenStoreServer::end_waits() {
  for (const StoreKeys::EndedWait& ended : keys_.take_ended(Clock::now())) {
    const auto found = clients_.find(ended.client);
    if (found != clients_.end()) reply(ended.client, found->second, ended.reply);
  }
}

void TokenStoreServer::end_strangers() {
  const auto oldest = Clock::now() - stranger_time_;
  for (std::list<uint64_t>* const places : {&silent_, &challenged_}) {
    for (auto next = places->begin(); next != places->end();) {
      const uint64_t id = *next++;
      if (clients_.at(id).since <= oldest) drop(id);
    }
  }
}

void TokenStoreServer::watch(uint64_t id, Client& client) {
  // A client that waits or receives has nothing to send, but it may close the connection.
  const uint32_t events = client.connection.is_sending() ? EPOLLOUT | EPOLLRDHUP
                          : client.waits                 ? EPOLLRDHUP
                                                         : EPOLLIN;
  if (events == client.events) return;
  client.events = events;
  control_poll(epoll_, EPOLL_CTL_MOD, client.connection.socket(), id, events);
}

void TokenStoreServer::drop(uint64_t id) {
  const auto found = clients_.find(id);
  Client& client = found->second;
  if (client.connection.stage() != StoreConnection::Stage::kAdmitted) {
    places_of(client.connection.stage()).erase(client.place);
    ++counts_.dropped;
  }
  keys_.drop(id);
  clients_.erase(found);
  counts_.open = static_cast<int64_t>(clients_.size());
}

}  // namespace fsdp
