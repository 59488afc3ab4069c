#include "support/memory_store.h"

#include <algorithm>
#include <charconv>
#include <condition_variable>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "fsdp/error.h"

namespace fsdp::testing {

struct MemoryStore::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, std::string> texts;
  std::set<int> muted;
  bool has_ended = false;
};

namespace {

class Connection final : public KeyValueStore {
 public:
  Connection(std::shared_ptr<MemoryStore::State> state, int owner)
      : state_(std::move(state)), owner_(owner) {}

  void set(const std::string& key, std::string_view value) override {
    const auto lock = use();
    if (!is_muted()) state_->texts[key] = value;
    state_->changed.notify_all();
  }
  std::string set_once(const std::string& key, std::string_view value) override {
    const auto lock = use();
    if (is_muted()) return std::string(value);
    state_->changed.notify_all();
    return state_->texts.emplace(key, value).first->second;
  }
  int64_t add(const std::string& key, int64_t value) override {
    const auto lock = use();
    const auto found = state_->texts.find(key);
    const std::string text = found == state_->texts.end() ? "0" : found->second;
    int64_t sum = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), sum);
    if (error != std::errc() || end != text.data() + text.size() ||
        __builtin_add_overflow(sum, is_muted() ? 0 : value, &sum)) {
      throw CommError({.what = "the value of " + key + " is not a number"});
    }
    if (is_muted()) return sum;
    state_->texts[key] = std::to_string(sum);
    state_->changed.notify_all();
    return sum;
  }
  bool has(const std::string& key) override {
    const auto lock = use();
    return state_->texts.contains(key);
  }
  bool wait(const std::vector<std::string>& keys, std::chrono::milliseconds at_most) override {
    auto lock = use();
    state_->changed.wait_for(lock, at_most, [&] { return state_->has_ended || have_all(keys); });
    require_open();
    return have_all(keys);
  }
  std::vector<std::string> get(const std::vector<std::string>& keys) override {
    const auto lock = use();
    std::vector<std::string> texts;
    for (const std::string& key : keys) {
      if (!state_->texts.contains(key)) throw CommError({.what = "no key " + key});
      texts.push_back(state_->texts.at(key));
    }
    return texts;
  }
  void forget(const std::string& key) override {
    const auto lock = use();
    if (!is_muted()) state_->texts.erase(key);
  }
  std::unique_ptr<KeyValueStore> connect_again() override {
    const auto lock = use();
    return std::make_unique<Connection>(state_, owner_);
  }

 private:
  // Locks the store. Every call first checks whether the store has ended, also if it does not wait.
  std::unique_lock<std::mutex> use() {
    std::unique_lock lock(state_->mutex);
    require_open();
    return lock;
  }
  void require_open() const {
    if (state_->has_ended) throw CommError({.what = "the store is gone"});
  }
  bool is_muted() const { return state_->muted.contains(owner_); }
  bool have_all(const std::vector<std::string>& keys) const {
    return std::ranges::all_of(keys, [&](const auto& key) { return state_->texts.contains(key); });
  }

  const std::shared_ptr<MemoryStore::State> state_;
  const int owner_;
};

}  // namespace

MemoryStore::MemoryStore() : state_(std::make_shared<State>()) {}
MemoryStore::~MemoryStore() = default;

std::unique_ptr<KeyValueStore> MemoryStore::connect(int owner) {
  return std::make_unique<Connection>(state_, owner);
}

void MemoryStore::mute(int owner) {
  const std::lock_guard lock(state_->mutex);
  state_->muted.insert(owner);
}

void MemoryStore::end() {
  const std::lock_guard lock(state_->mutex);
  state_->has_ended = true;
  state_->changed.notify_all();
}

size_t MemoryStore::size() const {
  const std::lock_guard lock(state_->mutex);
  return state_->texts.size();
}

}  // namespace fsdp::testing
