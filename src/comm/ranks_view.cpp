#include "comm/ranks_view.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "fsdp/error.h"
#include "fsdp/program_text.h"

namespace fsdp {
namespace {

// Reserves addresses for the ranks' pieces, without memory. GuardedPages map the pieces at these
// addresses.
Buffer reserve_addresses(int64_t bytes) {
  void* at = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) {
    throw DeviceError({.what = format_bytes(bytes) + " of address space cannot be reserved",
                       .where = "a view of all ranks' shards",
                       .cause = std::strerror(errno),
                       .hint = "check the limit of address space (ulimit -v)"});
  }
  return {at, bytes, [bytes](void* data) { munmap(data, bytes); }};
}

}  // namespace

RanksView::RanksView(std::shared_ptr<const void> files, std::span<const FilePages> pieces)
    : files_(std::move(files)) {
  int64_t bytes = 0;
  for (const FilePages& piece : pieces) bytes += piece.bytes;
  addresses_ = reserve_addresses(bytes);
  pieces_.reserve(pieces.size());
  int64_t at = 0;
  for (const FilePages& piece : pieces) {
    pieces_.emplace_back(piece, addresses_.at(at));
    at += piece.bytes;
  }
}

std::optional<int64_t> RanksView::take_write() {
  std::optional<int64_t> written;
  int64_t at = 0;
  for (GuardedPages& piece : pieces_) {
    // take_write is called for every piece, even after a written byte was found, because the call
    // restores the view of the piece.
    const std::optional<int64_t> here = piece.take_write();
    if (here && !written) written = at + *here;
    // All pieces have equal lengths, so the next piece begins one length further.
    at += addresses_.bytes() / static_cast<int64_t>(pieces_.size());
  }
  return written;
}

}  // namespace fsdp
