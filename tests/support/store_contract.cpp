#include "support/store_contract.h"

#include <doctest/doctest.h>

#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "fsdp/error.h"

namespace fsdp::testing {
namespace {

using std::chrono::milliseconds;
using Texts = std::vector<std::string>;
using Connect = std::function<std::unique_ptr<KeyValueStore>()>;

void check_values(KeyValueStore& store) {
  CHECK_FALSE(store.has("a"));
  store.set("a", "one");
  store.set("a", "two");
  CHECK(store.get({"a"}) == Texts{"two"});
  CHECK(store.set_once("a", "three") == "two");
  CHECK(store.set_once("b", "four") == "four");
  // A value has any bytes and may be empty; keys may be asked for several times.
  const std::string bytes("\0\n\xff", 3), large(300'000, 'x');
  store.set("bytes", bytes);
  store.set("none", "");
  store.set("large", large);
  CHECK(store.get({"bytes", "none", "large", "a", "bytes"}) ==
        Texts{bytes, "", large, "two", bytes});
  CHECK(store.get({}).empty());
  CHECK(store.have({"a", "c", "none"}) == std::vector<bool>{true, false, true});
  store.forget("a");
  store.forget("never");
  CHECK_FALSE(store.has("a"));
  CHECK_THROWS_AS(store.get({"b", "a"}), CommError);
  CHECK(store.get({"b"}) == Texts{"four"});
}

void check_numbers(KeyValueStore& store) {
  CHECK(store.add("n", 0) == 0);
  CHECK(store.add("n", 5) == 5);
  CHECK(store.add("n", -7) == -2);
  CHECK(store.has("n"));
  CHECK(store.get({"n"}) == Texts{"-2"});
  store.set("text", "12 apples");
  CHECK_THROWS_AS(store.add("text", 1), CommError);
  store.set("most", std::to_string(std::numeric_limits<int64_t>::max()));
  CHECK_THROWS_AS(store.add("most", 1), CommError);
}

void check_waits(KeyValueStore& store, const Connect& connect) {
  CHECK(store.wait({}, milliseconds(0)));
  store.set("w1", "");
  CHECK(store.wait({"w1"}, milliseconds(0)));
  CHECK_FALSE(store.wait({"w1", "w2"}, milliseconds(0)));
  CHECK_FALSE(store.wait({"w1", "w2"}, milliseconds(20)));
  // Several waits end when the last of their keys is set, in any order of the keys.
  std::vector<std::thread> waiters;
  for (const Texts& keys : {Texts{"w2", "w3", "w1"}, {"w3", "w2"}, {"w4", "w2"}}) {
    waiters.emplace_back([keys, &connect] {
      const auto own = connect();
      CHECK(own->wait(keys, std::chrono::seconds(30)));
      own->get(keys);
    });
  }
  const auto again = store.connect_again();
  for (const char* key : {"w3", "w4", "w2"}) again->set(key, "set");
  for (std::thread& waiter : waiters) waiter.join();
  CHECK(store.get({"w2"}) == Texts{"set"});
}

void check_threads(const Connect& connect) {
  std::vector<std::thread> threads;
  const std::shared_ptr<KeyValueStore> first = connect();
  std::vector<std::unique_ptr<KeyValueStore>> stores;
  for (int i = 0; i < 4; ++i) stores.push_back(first->connect_again());
  for (const auto& store : stores) {
    threads.emplace_back([&store] {
      for (int i = 0; i < 100; ++i) {
        store->add("count", 1);
        store->set_once("winner" + std::to_string(i), std::to_string(i));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(first->add("count", 0) == 400);
}

}  // namespace

void check_store_contract(const Connect& connect) {
  const auto store = connect();
  check_values(*store);
  check_numbers(*store);
  check_waits(*store, connect);
  check_threads(connect);
}

}  // namespace fsdp::testing
