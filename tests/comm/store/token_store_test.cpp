// Tests the ranks' own store over real sockets: the contract of a store, the token, and strangers.
#include "comm/store/token_store.h"

#include <doctest/doctest.h>

#include <cstring>
#include <thread>
#include <vector>

#include "comm/support/served_store.h"
#include "fsdp/error.h"
#include "support/memory_store.h"
#include "support/store_contract.h"

namespace fsdp {
namespace {

using std::chrono::milliseconds;
using testing::RawConnection;
using testing::ServedStore;

template <class Body>
std::string refusal_of(Body body) {
  try {
    body();
  } catch (const InvalidArgument& error) {
    CHECK(error.exit_code() == 78);
    return error.what();
  }
  return "accepted";
}

template <class Condition>
void wait_for(Condition condition) {
  while (!condition()) std::this_thread::sleep_for(milliseconds(1));
}

// Checks that a client of the job is served.
void check_serves(const ServedStore& served) {
  const auto store = served.connect();
  store->set("alive", "yes");
  CHECK(store->get({"alive"}).front() == "yes");
}

StoreChallenge challenge_in(const std::string& bytes) {
  StoreChallenge challenge;
  REQUIRE(bytes.size() == sizeof challenge);
  std::memcpy(&challenge, bytes.data(), sizeof challenge);
  return challenge;
}

TEST_CASE("a store in memory and the ranks' own store keep the same contract") {
  testing::MemoryStore memory;
  testing::check_store_contract([&] { return memory.connect(0); });
  const ServedStore served;
  testing::check_store_contract([&] { return served.connect(); });
}

TEST_CASE("the store of a process that serves it lives until its last connection closes") {
  ServedStore served;
  TokenStore::Parts parts = served.parts(served.key);
  parts.server = std::move(served.server);
  auto first = std::make_unique<TokenStore>(parts);
  parts.server.reset();
  const auto client = std::make_unique<TokenStore>(parts);
  auto second = first->connect_again();
  first.reset();
  second->set("a", "b");
  CHECK(client->get({"a"}).front() == "b");
  second.reset();
  CHECK_THROWS_WITH_AS(client->get({"a"}), doctest::Contains("does not answer"), CommError);
  CHECK_THROWS_WITH_AS(client->has("a"), doctest::Contains("was lost before"), CommError);
}

TEST_CASE("the server listens at its address alone") {
  const ServedStore served;
  CHECK_FALSE(served.server->address().is_wildcard());
  CHECK(served.server->address().host() == "127.0.0.1");
  // Another address of this machine has no listener at this port.
  const TcpAddress other =
      find_addresses("127.0.0.2", served.server->address().port()).addresses.front();
  CHECK(connect_within(other, milliseconds(1000)).error == ECONNREFUSED);
}

TEST_CASE("a rank with another token is refused at once, with the token's file and the address") {
  const ServedStore served;
  const std::string told = refusal_of([&] { TokenStore(served.parts(std::string(32, 'x'))); });
  CHECK(told == "the ranks' store at " + served.server->address().text() +
                    " does not accept this rank's token (FSDP_JOB_TOKEN_FILE=/of/a/test); hint: "
                    "copy rank 0's token file to this host");
  check_serves(served);
}

TEST_CASE("a server without the token is noticed, and learns no answer") {
  const Descriptor listener = listen_at(find_addresses("127.0.0.1", 0).addresses.front()).socket;
  const TcpAddress address = address_of_socket(listener.get());
  std::string after_challenge = "nothing was received";
  std::thread false_server([&] {
    wait_until_ready(listener, POLLIN, testing::kStoreTimeout);
    const Descriptor client(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    StoreHello hello;
    recv(client.get(), &hello, sizeof hello, MSG_WAITALL);
    StoreChallenge challenge{.verdict = StoreVerdict::kAccepted, .nonce = new_nonce()};
    challenge.proof = proof_of_server(std::string(32, 'g'), hello.nonce, challenge.nonce);
    send(client.get(), &challenge, sizeof challenge, MSG_NOSIGNAL);
    char byte = 0;
    after_challenge = recv(client.get(), &byte, 1, 0) == 0 ? "" : "an answer";
  });
  const ServedStore served;
  TokenStore::Parts parts = served.parts(served.key);
  parts.addresses = {address};
  const std::string told = refusal_of([&] { TokenStore{parts}; });
  false_server.join();
  CHECK(told.starts_with("the process that listens at " + address.text() +
                         " does not know this rank's token (FSDP_JOB_TOKEN_FILE=/of/a/test)"));
  CHECK(after_challenge.empty());
}

TEST_CASE("a client whose answer the server does not confirm connects again") {
  const Descriptor listener = listen_at(find_addresses("127.0.0.1", 0).addresses.front()).socket;
  const TcpAddress address = address_of_socket(listener.get());
  const ServedStore served;
  int confirmed = 0;
  std::thread server([&] {
    for (const bool confirms : {false, true}) {
      REQUIRE(wait_until_ready(listener, POLLIN, testing::kStoreTimeout));
      const Descriptor client(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      StoreHello hello;
      recv(client.get(), &hello, sizeof hello, MSG_WAITALL);
      StoreChallenge challenge{.verdict = StoreVerdict::kAccepted, .nonce = new_nonce()};
      challenge.proof = proof_of_server(served.key, hello.nonce, challenge.nonce);
      send(client.get(), &challenge, sizeof challenge, MSG_NOSIGNAL);
      StoreAnswer answer;
      recv(client.get(), &answer, sizeof answer, MSG_WAITALL);
      const StoreAdmission admission;
      if (confirms) send(client.get(), &admission, sizeof admission, MSG_NOSIGNAL);
      confirmed += confirms ? 1 : 0;
    }
  });
  TokenStore::Parts parts = served.parts(served.key);
  parts.addresses = {address};
  const TokenStore client(parts);
  server.join();
  CHECK(confirmed == 1);
}

TEST_CASE("all keys with a beginning are forgotten at once") {
  const ServedStore served;
  TokenStore store(served.parts(served.key));
  for (const char* const key : {"fsdp/1/a", "fsdp/1/b", "fsdp/10/a", "other"}) store.set(key, "1");
  store.forget_all("fsdp/1/");
  CHECK(store.have({"fsdp/1/a", "fsdp/1/b", "fsdp/10/a", "other"}) ==
        std::vector<bool>{false, false, true, true});
}

TEST_CASE("strangers that send noise, guesses or old answers are closed, and get no key") {
  const ServedStore served;
  check_serves(served);
  for (const std::string noise : {"GET / HTTP/1.1\r\n\r\n", "x", "fsdpsto1", "\0\0\0\0"}) {
    const RawConnection stranger = served.connect_raw();
    stranger.send(noise + std::string(1, '\0'));
    CHECK(stranger.is_closed());
  }
  {
    const RawConnection guesser = served.connect_raw();
    guesser.send_message(StoreHello{.nonce = new_nonce(), .proof = sha256("a guess")});
    CHECK(challenge_in(guesser.receive()).verdict == StoreVerdict::kRefused);
    CHECK(guesser.is_closed());
  }
  // A recorded hello is answered, but the recorded answer does not fit the new challenge.
  const StoreHello hello = served.hello();
  StoreAnswer recorded;
  for (const bool replays : {false, true}) {
    const RawConnection client = served.connect_raw();
    client.send_message(hello);
    const StoreChallenge challenge = challenge_in(client.receive());
    CHECK(challenge.verdict == StoreVerdict::kAccepted);
    CHECK(challenge.proof == proof_of_server(served.key, hello.nonce, challenge.nonce));
    if (!replays) recorded.proof = proof_of_client(served.key, hello.nonce, challenge.nonce);
    client.send_message(recorded);
    if (!replays) CHECK(client.receive().size() == sizeof(StoreAdmission));
    client.send(encoded({.kind = static_cast<uint32_t>(StoreRequest::kHave), .texts = {"k"}}));
    CHECK(client.is_closed() == replays);
  }
  // The hashes of one role do not serve for another.
  const RawConnection mirror = served.connect_raw();
  mirror.send_message(hello);
  const StoreChallenge challenge = challenge_in(mirror.receive());
  mirror.send_message(StoreAnswer{.proof = challenge.proof});
  CHECK(mirror.is_closed());
  check_serves(served);
}

TEST_CASE("a flood of silent connections keeps no rank out, and takes eight places") {
  const ServedStore served;
  std::vector<RawConnection> strangers;
  for (int i = 0; i < 300; ++i) {
    strangers.push_back(served.connect_raw());
    if (i % 50 == 0) check_serves(served);
  }
  const auto& counts = served.server->counts();
  wait_for([&] { return counts.accepted >= 306; });
  wait_for([&] { return counts.open <= int64_t{TokenStoreServer::kMostSilent}; });
  CHECK(counts.dropped >= 292);
  CHECK(counts.admitted == 6);
  check_serves(served);
}

TEST_CASE("a silent stranger, and one that never answers, are closed after their time") {
  ServedStore served;
  served.server = std::make_shared<TokenStoreServer>(
      listen_at(find_addresses("127.0.0.1", 0).addresses.front()).socket, served.key,
      milliseconds(300));
  const RawConnection silent = served.connect_raw(), halting = served.connect_raw();
  halting.send_message(served.hello());
  CHECK(halting.receive().size() == sizeof(StoreChallenge));
  CHECK(silent.is_closed());
  CHECK(halting.is_closed());
  CHECK(served.server->counts().dropped == 2);
}

// Returns a connection that has shown the token.
RawConnection admitted(const ServedStore& served) {
  RawConnection client = served.connect_raw();
  const StoreHello hello = served.hello();
  client.send_message(hello);
  const StoreChallenge challenge = challenge_in(client.receive());
  client.send_message(
      StoreAnswer{.proof = proof_of_client(served.key, hello.nonce, challenge.nonce)});
  CHECK(client.receive().size() == sizeof(StoreAdmission));
  return client;
}

TEST_CASE("an admitted client that breaks the protocol is closed, and delays nobody") {
  const ServedStore served;
  const auto get = [](const std::string& key) {
    return encoded({.kind = static_cast<uint32_t>(StoreRequest::kGet), .texts = {key}});
  };
  for (const std::string& wrong :
       {std::string(24, '\xff'), get("a") + get("b"), get(std::string(2000, 'k')),
        encoded({.kind = static_cast<uint32_t>(StoreRequest::kSet), .texts = {"no value"}}),
        encoded({.kind = static_cast<uint32_t>(StoreReply::kDone)})}) {
    const RawConnection client = admitted(served);
    client.send(wrong);
    CHECK(client.is_closed());
  }
  // A client sends half a request, another one does not read its large reply.
  const RawConnection half = admitted(served);
  half.send(get("a").substr(0, 10));
  served.connect()->set("large", std::string(size_t{32} << 20, 'x'));
  const RawConnection slow = admitted(served);
  slow.send(get("test/large"));
  for (int i = 0; i < 20; ++i) check_serves(served);
  CHECK(slow.receive(sizeof(StoreHeader)).size() == sizeof(StoreHeader));
}

TEST_CASE("a client that ends during a wait leaves nothing behind") {
  const ServedStore served;
  {
    const RawConnection client = admitted(served);
    client.send(encoded({.kind = static_cast<uint32_t>(StoreRequest::kWait),
                         .number = 3'600'000,
                         .texts = {"test/never"}}));
    wait_for([&] { return served.server->counts().of(StoreRequest::kWait) == 1; });
  }
  wait_for([&] { return served.server->counts().open == 0; });
  served.connect()->set("never", "set");
  check_serves(served);
}

TEST_CASE("keys and values beyond the limits are refused by the client") {
  const ServedStore served;
  const auto store = served.connect();
  CHECK_THROWS_WITH_AS(store->set(std::string(1100, 'k'), ""), doctest::Contains("a key of 1105 "),
                       StateError);
  CHECK_THROWS_WITH_AS(store->set("k", std::string(kMostValueBytes + 1, 'v')),
                       doctest::Contains("expected at most 64.0 MiB"), StateError);
  check_serves(served);
}

TEST_CASE("a client waits for a server that starts later, and refuses an address without one") {
  ServedStore served;
  TokenStore::Parts parts = served.parts(served.key);
  const TcpAddress address = served.server->address();
  served.server.reset();
  parts.timeout = milliseconds(300);
  const std::string told = refusal_of([&] { TokenStore{parts}; });
  CHECK(told.starts_with("rendezvous at 127.0.0.1:" + std::to_string(address.port()) +
                         " failed (MASTER_ADDR, MASTER_PORT); nothing listens at 127.0.0.1"));
  parts.timeout = testing::kStoreTimeout;
  std::thread late([&] { TokenStore(parts).set("late", "no"); });
  // The client has tried at least once when this thread has slept, or it has not: both are right.
  std::this_thread::sleep_for(milliseconds(20));
  const TokenStoreServer server(listen_at(address).socket, served.key);
  late.join();
  CHECK(server.counts().of(StoreRequest::kSet) == 1);
}

}  // namespace
}  // namespace fsdp
