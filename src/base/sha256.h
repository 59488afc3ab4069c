// SHA-256 (FIPS 180-4) and HMAC-SHA-256 (RFC 2104).
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace fsdp {

using Sha256 = std::array<uint8_t, 32>;

Sha256 sha256(std::string_view text);
// Returns the keyed hash of `text`. Without the key, it cannot be computed.
Sha256 hmac_sha256(std::string_view key, std::string_view text);
// Compares in a time that does not depend on the contents.
bool equal_in_constant_time(const Sha256& one, const Sha256& other);

}  // namespace fsdp
