#include "support/memory_store.h"

#include <algorithm>
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
  std::map<std::string, int64_t> numbers;
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
    return state_->numbers[key] += is_muted() ? 0 : value;
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
    for (const std::string& key : keys) texts.push_back(state_->texts.at(key));
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
