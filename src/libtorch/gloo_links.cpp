// LibTorch declares ProcessGroupGloo only if this macro is defined. LibTorch's CMake files define
// it, too.
#ifndef USE_C10D_GLOO
#define USE_C10D_GLOO
#endif
#include "libtorch/gloo_links.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <exception>
#include <functional>
#include <mutex>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <utility>
#include <vector>

#include "base/descriptor.h"
#include "fsdp/error.h"

namespace fsdp {
namespace {

using std::chrono::milliseconds;

// Gloo breaks a connection when a wait on it times out. The watch of the ranks' waits
// (hosts_session.h) has the time-out instead, so Gloo's waits last as long as needed.
constexpr auto kNoLimit = std::chrono::hours(24 * 365);
constexpr auto kCheckEvery = milliseconds(100);

std::vector<uint8_t> bytes_of(std::string_view text) { return {text.begin(), text.end()}; }

// Returns Gloo's text without the place in Gloo's sources at its beginning and the advice at its
// end.
std::string cause_in(std::string text) {
  const size_t place = text.find("] ");
  if (text.starts_with('[') && place != std::string::npos) text.erase(0, place + 2);
  text.resize(std::min(text.find(". This is typically"), text.size()));
  return text;
}

// Runs `body` and converts the errors of Gloo and c10d to CommError, which callers expect.
template <class Body>
auto as_comm_errors(ExitCode code, const char* what, Body body) {
  try {
    return body();
  } catch (const Error&) {
    throw;  // an error of the store has its own text
  } catch (const std::exception& error) {
    throw CommError({.what = what,
                     .where = "communication between hosts",
                     .cause = cause_in(std::string(message_of(error))),
                     .hint = "see what the other ranks print"},
                    code);
  }
}

// Gives Gloo access to the ranks' store, in which it publishes addresses.
class AddressStore final : public c10d::Store {
 public:
  // `check` is called while a rank waits for a key.
  AddressStore(KeyValueStore& store, std::string prefix, milliseconds timeout,
               std::function<void()> check)
      : c10d::Store(timeout), store_(store), prefix_(std::move(prefix)), check_(std::move(check)) {}

  c10::intrusive_ptr<c10d::Store> clone() override {
    return c10::make_intrusive<AddressStore>(store_, prefix_, timeout_, check_);
  }
  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    store_.set(prefix_ + key, {reinterpret_cast<const char*>(value.data()), value.size()});
  }
  std::vector<uint8_t> get(const std::string& key) override {
    wait({key}, timeout_);
    return bytes_of(store_.get({prefix_ + key}).front());
  }
  int64_t add(const std::string& key, int64_t value) override {
    return store_.add(prefix_ + key, value);
  }
  bool deleteKey(const std::string& key) override {
    store_.forget(prefix_ + key);
    return true;
  }
  bool check(const std::vector<std::string>& keys) override {
    return store_.wait(prefixed(keys), milliseconds(0));
  }
  int64_t getNumKeys() override { return 0; }  // Gloo does not ask
  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys, const milliseconds& timeout) override {
    const std::vector<std::string> wanted = prefixed(keys);
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    do {
      if (store_.wait(wanted, std::min(timeout, kCheckEvery))) return;
      check_();
    } while (std::chrono::steady_clock::now() < deadline);
    throw CommError({.what = "a rank did not publish its address",
                     .where = "start of the job",
                     .hint = "see what the other ranks print"});
  }

 private:
  std::vector<std::string> prefixed(const std::vector<std::string>& keys) const {
    std::vector<std::string> result;
    for (const std::string& key : keys) result.push_back(prefix_ + key);
    return result;
  }

  KeyValueStore& store_;
  const std::string prefix_;
  const std::function<void()> check_;
};

class GlooTransfer final : public Transfer {
 public:
  explicit GlooTransfer(c10::intrusive_ptr<c10d::Work> work) : work_(std::move(work)) {}

  void wait() override {
    as_comm_errors(ExitCode::kPeerFailed, "a connection between hosts is broken",
                   [&] { work_->wait(kNoLimit); });
  }
  void cancel() noexcept override {
    try {
      work_->abort();
    } catch (const std::exception&) {
      // A work that is complete or whose connection is broken has nothing to end.
    }
  }

 private:
  const c10::intrusive_ptr<c10d::Work> work_;
};

// A connection between each two ranks of a list. Data travel in one direction.
struct GlooConnections {
  std::mutex mutex;  // ProcessGroupGloo counts its calls without synchronization
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group;
};

// Two ranks have a connection for each direction, because Gloo locks a connection while it reads or
// writes. Over one connection, data would not be sent and received at the same time.
class GlooLinks final : public HostLinks {
 public:
  using Connect = std::function<c10::intrusive_ptr<c10d::ProcessGroupGloo>(std::string_view)>;
  GlooLinks(int rank, const Connect& connect) : rank_(rank) {
    upward_.group = connect("up");
    downward_.group = connect("down");
  }

  std::unique_ptr<Transfer> send(int peer, uint32_t tag, const void* data, int64_t bytes) override {
    // Gloo does not write to data that it sends.
    return begin(const_cast<void*>(data), bytes, rank_ < peer ? upward_ : downward_,
                 [&](c10d::ProcessGroupGloo& group, std::vector<at::Tensor>& tensors) {
                   return group.send(tensors, peer, static_cast<int>(tag));
                 });
  }
  std::unique_ptr<Transfer> receive(int peer, uint32_t tag, void* data, int64_t bytes) override {
    return begin(data, bytes, peer < rank_ ? upward_ : downward_,
                 [&](c10d::ProcessGroupGloo& group, std::vector<at::Tensor>& tensors) {
                   return group.recv(tensors, peer, static_cast<int>(tag));
                 });
  }

 private:
  template <class Call>
  static std::unique_ptr<Transfer> begin(void* data, int64_t bytes, GlooConnections& connections,
                                         const Call& call) {
    std::vector<at::Tensor> tensors{at::from_blob(data, {bytes}, at::kByte)};
    const std::lock_guard lock(connections.mutex);
    return as_comm_errors(ExitCode::kPeerFailed, "a connection between hosts is broken", [&] {
      return std::make_unique<GlooTransfer>(call(*connections.group, tensors));
    });
  }

  const int rank_;
  GlooConnections upward_;    // carry data to ranks with higher numbers
  GlooConnections downward_;  // carry data to ranks with lower numbers
};

// While it exists, threads that the calling thread starts do not preempt others when they wake up.
class PatientThreads {
 public:
  PatientThreads() {
    is_changed_ = pthread_getschedparam(pthread_self(), &policy_, &parameter_) == 0 &&
                  policy_ == SCHED_OTHER &&
                  pthread_setschedparam(pthread_self(), SCHED_BATCH, &parameter_) == 0;
  }
  ~PatientThreads() {
    if (is_changed_) pthread_setschedparam(pthread_self(), policy_, &parameter_);
  }
  PatientThreads(const PatientThreads&) = delete;
  PatientThreads& operator=(const PatientThreads&) = delete;

 private:
  int policy_ = 0;
  sched_param parameter_{};
  bool is_changed_ = false;
};

// Creates a device, which starts Gloo's thread. While another thread has the lock of a connection,
// this thread polls. If it preempted the other thread, it would poll to the end of its time slice.
std::shared_ptr<gloo::transport::Device> make_device(const std::string& address) {
  const PatientThreads patient;
  return as_comm_errors(ExitCode::kConfiguration, "Gloo cannot listen at this host's address",
                        [&] { return c10d::ProcessGroupGloo::createDeviceForHostname(address); });
}

class GlooTransport final : public HostTransport {
 public:
  explicit GlooTransport(const std::string& address) : device_(make_device(address)) {}

  std::shared_ptr<HostLinks> connect(KeyValueStore& store, const Group& group, milliseconds timeout,
                                     const std::function<void()>& check) override {
    const auto connections = [&](std::string_view name) {
      auto options = c10d::ProcessGroupGloo::Options::create(timeout);
      options->devices = {device_};
      options->threads = 1;  // for Gloo's collectives, which are not used
      auto addresses = c10::make_intrusive<AddressStore>(
          store, fmt::format("gloo/{}/{}/", group.name, name), timeout, check);
      return c10::make_intrusive<c10d::ProcessGroupGloo>(std::move(addresses), group.rank,
                                                         group.size, std::move(options));
    };
    return as_comm_errors(ExitCode::kPeerFailed, "the ranks cannot connect",
                          [&] { return std::make_shared<GlooLinks>(group.rank, connections); });
  }

 private:
  const std::shared_ptr<gloo::transport::Device> device_;
};

}  // namespace

std::unique_ptr<HostTransport> open_gloo(const std::string& address) {
  struct sigaction now {};
  if (sigaction(SIGPIPE, nullptr, &now) == 0 && now.sa_handler == SIG_DFL) {
    std::signal(SIGPIPE, SIG_IGN);
  }
  // A rank has two connections to each other host, for each list of ranks.
  raise_descriptor_limit();
  return std::make_unique<GlooTransport>(address);
}

}  // namespace fsdp
