#include "base/sha256.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <string>

namespace fsdp {
namespace {

std::string hex(const Sha256& hash) {
  std::string text;
  for (const uint8_t byte : hash) text += fmt::format("{:02x}", byte);
  return text;
}

// The vectors are those of NIST (FIPS 180-4 examples, SHA256ShortMsg.rsp).
TEST_CASE("SHA-256 gives NIST's hashes") {
  CHECK(hex(sha256("")) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(hex(sha256("abc")) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(hex(sha256("\xd3")) == "28969cdfa74a12c82f3bad960b0b000aca2ac329deea5c2328ebc6f2ba9802c1");
  CHECK(hex(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")) ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK(hex(sha256("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmn"
                   "hijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu")) ==
        "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
  CHECK(hex(sha256(std::string(1'000'000, 'a'))) ==
        "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

// The padding fills the last block, or needs one block more.
TEST_CASE("SHA-256 pads texts of every length around a block's end") {
  CHECK(hex(sha256(std::string(55, 'a'))) ==
        "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318");
  CHECK(hex(sha256(std::string(56, 'a'))) ==
        "b35439a4ac6f0948b6d6f9e3c6af0f5f590ce20f1bde7090ef7970686ec6738a");
  CHECK(hex(sha256(std::string(64, 'a'))) ==
        "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb");
}

// The vectors are test cases 1, 2, 3 and 6 of RFC 4231.
TEST_CASE("HMAC-SHA-256 gives the hashes of RFC 4231") {
  CHECK(hex(hmac_sha256(std::string(20, '\x0b'), "Hi There")) ==
        "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  CHECK(hex(hmac_sha256("Jefe", "what do ya want for nothing?")) ==
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  CHECK(hex(hmac_sha256(std::string(20, '\xaa'), std::string(50, '\xdd'))) ==
        "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  CHECK(hex(hmac_sha256(std::string(131, '\xaa'),
                        "Test Using Larger Than Block-Size Key - Hash Key First")) ==
        "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST_CASE("hashes that differ in one bit are not equal") {
  const Sha256 hash = sha256("abc");
  CHECK(equal_in_constant_time(hash, sha256("abc")));
  for (size_t bit = 0; bit < 256; ++bit) {
    Sha256 other = hash;
    other[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    CHECK_FALSE(equal_in_constant_time(hash, other));
  }
}

}  // namespace
}  // namespace fsdp
