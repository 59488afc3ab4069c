#include "libtorch/torch_store.h"

#include <c10/util/Logging.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <future>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

#include "comm/store/reach.h"
#include "fsdp/error.h"

namespace fsdp {
namespace {

using std::chrono::milliseconds;

constexpr auto kAnswerWithin = milliseconds(500);  // in addition to c10d's own time-out
constexpr auto kLookFor = milliseconds(1000);
constexpr auto kShortestPause = std::chrono::microseconds(200);
constexpr auto kLongestPause = std::chrono::microseconds(10'000);
constexpr auto kPauseOfKey = std::chrono::microseconds(100);

std::vector<uint8_t> bytes_of(std::string_view text) { return {text.begin(), text.end()}; }
std::string text_of(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

// Runs `body` and converts c10d's errors (c10::Error) to CommError, which callers expect.
template <class Body>
auto as_comm_errors(const StoreAddress& address, Body body) {
  try {
    return body();
  } catch (const c10::Error& error) {
    throw CommError({.what = fmt::format("the ranks' store at {}:{} does not answer", address.host,
                                         address.port),
                     .where = "communication between hosts",
                     .cause = error.what_without_backtrace(),
                     .hint = "see what the launcher printed"});
  }
}

// Throws the error for a store that cannot be opened.
[[noreturn]] void refuse(const StoreAddress& address) {
  Reach reach = reach_of(address.host, address.port, kLookFor);
  throw InvalidArgument(
      {.what = fmt::format("rendezvous at {}:{} failed", address.host, address.port),
       .where = "MASTER_ADDR, MASTER_PORT",
       .cause = std::move(reach.text),
       .hint = std::move(reach.hint)});
}

using TcpStore = c10::intrusive_ptr<c10d::TCPStore>;

// Connects on a new thread, because c10d waits forever if another program listens at the address
// and does not answer. The new thread is abandoned at the time-out.
TcpStore connect_within(const StoreAddress& address, milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(address.port);
  options.waitWorkers = false;
  options.timeout = timeout;
  // A promise is used because the future of std::async would block in its destructor.
  std::promise<TcpStore> promise;
  std::future<TcpStore> made = promise.get_future();
  std::thread([host = address.host, options, promise = std::move(promise)]() mutable {
    try {
      promise.set_value(c10::make_intrusive<c10d::TCPStore>(host, options));
    } catch (...) {
      promise.set_exception(std::current_exception());
    }
  }).detach();
  if (made.wait_for(timeout + kAnswerWithin) != std::future_status::ready) {
    refuse(address);
  }
  return made.get();
}

class TorchStore final : public KeyValueStore {
 public:
  TorchStore(StoreAddress address, TcpStore tcp)
      : address_(std::move(address)),
        tcp_(std::move(tcp)),
        store_(c10::make_intrusive<c10d::PrefixStore>(address_.prefix, tcp_)) {}

  void set(const std::string& key, std::string_view value) override {
    as_comm_errors(address_, [&] { store_->set(key, bytes_of(value)); });
  }
  std::string set_once(const std::string& key, std::string_view value) override {
    return as_comm_errors(address_,
                          [&] { return text_of(store_->compareSet(key, {}, bytes_of(value))); });
  }
  int64_t add(const std::string& key, int64_t value) override {
    return as_comm_errors(address_, [&] { return store_->add(key, value); });
  }
  bool has(const std::string& key) override {
    return as_comm_errors(address_, [&] { return store_->check({key}); });
  }
  // Polls the keys. c10d's own wait is not used, because it prints a warning with a stack at each
  // time-out.
  bool wait(const std::vector<std::string>& keys, milliseconds at_most) override {
    const auto deadline = std::chrono::steady_clock::now() + at_most;
    // The server's time for a check grows with the number of keys, so the longest pause grows, too.
    const auto longest = kLongestPause + keys.size() * kPauseOfKey;
    for (std::chrono::microseconds pause = kShortestPause;; pause = 2 * pause) {
      if (as_comm_errors(address_, [&] { return store_->check(keys); })) return true;
      const auto now = std::chrono::steady_clock::now();
      if (now >= deadline) return false;
      if (pause > longest) pause = longest;
      std::this_thread::sleep_until(std::min(now + pause, deadline));
    }
  }
  std::vector<std::string> get(const std::vector<std::string>& keys) override {
    return as_comm_errors(address_, [&] {
      std::vector<std::string> texts;
      for (const auto& bytes : store_->multiGet(keys)) texts.push_back(text_of(bytes));
      return texts;
    });
  }
  void forget(const std::string& key) override {
    as_comm_errors(address_, [&] { return store_->deleteKey(key); });
  }
  std::unique_ptr<KeyValueStore> connect_again() override {
    return open_torch_store(address_, tcp_->getTimeout());
  }

 private:
  const StoreAddress address_;
  const TcpStore tcp_;
  const c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace

std::unique_ptr<KeyValueStore> open_torch_store(const StoreAddress& address, milliseconds timeout) {
  // Silences c10d, which prints failed connections with a stack. The thrown error reports failed
  // connections instead. A log level that the user has set is not changed.
  if (std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr) FLAGS_caffe2_log_level = c10::GLOG_FATAL;
  try {
    return std::make_unique<TorchStore>(address, connect_within(address, timeout));
  } catch (const c10::Error&) {
    refuse(address);
  }
}

}  // namespace fsdp
