#include "comm/store/open_job_store.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "comm/store/master_address.h"
#include "comm/store/tcp_socket.h"
#include "comm/store/token_store.h"
#include "fsdp/error.h"

namespace fsdp {
namespace {

using std::chrono::milliseconds;

constexpr auto kBetweenBinds = milliseconds(100);
// An earlier job's server may still be ending when a restarted job begins.
constexpr auto kBindWithin = milliseconds(2000);

// An agent's store survives a restart. The prefix ensures that the new job does not read keys of
// the old job.
std::string prefix_of(const LaunchEnvironment& environment) {
  return fmt::format("fsdp/{}/", environment.restart_count);
}

std::unique_ptr<KeyValueStore> open_store_of_agent(const LaunchEnvironment& environment,
                                                   milliseconds timeout, OpenStore open) {
  // Only the engine links LibTorch's store. In a program without an engine, `open` is null.
  if (open == nullptr) {
    throw InvalidArgument(
        {.what = "ranks of several hosts cannot join: the program does not link LibTorch's store",
         .where = "Mesh::from_env",
         .cause = "torchrun's agent serves LibTorch's store, which is linked with the engine",
         .hint = "link the CMake target fsdp::fsdp; the linker includes the store only if the "
                 "program's code uses fsdp::Engine, also after this call"});
  }
  return open({.host = environment.master_addr,
               .port = *environment.master_port,
               .prefix = prefix_of(environment)},
              timeout);
}

}  // namespace

ErrorText warning_without_token(const MasterAddress& master, const StoreToken& token) {
  return {.what = fmt::format("any process that reaches {}:{} can join this job", master.host,
                              master.port),
          .where = token.source,
          .hint = "use a token unless the network is private"};
}

Descriptor listen_at_master(const MasterAddress& master) {
  const auto deadline = std::chrono::steady_clock::now() + kBindWithin;
  int error = 0;
  do {
    for (const TcpAddress& address : master.addresses) {
      OpenedSocket opened = listen_at(address);
      if (opened.error == 0) return std::move(opened.socket);
      // The port's error says more than that of an address of another host.
      if (error == 0 || opened.error != EADDRNOTAVAIL) error = opened.error;
    }
    if (error == EADDRINUSE) std::this_thread::sleep_for(kBetweenBinds);
  } while (error == EADDRINUSE && std::chrono::steady_clock::now() < deadline);
  throw InvalidArgument(
      {.what = fmt::format("rendezvous at {}:{} failed", master.host, master.port),
       .where = "MASTER_ADDR, MASTER_PORT",
       .cause = fmt::format("rank 0 cannot listen at {}: {}", master.addresses.front().text(),
                            std::strerror(error)),
       .hint = error == EADDRNOTAVAIL
                   ? "set MASTER_ADDR to an address of rank 0's host"
                   : "if the port is in use, set another MASTER_PORT on all ranks"});
}

std::unique_ptr<KeyValueStore> open_job_store(const LaunchEnvironment& environment,
                                              const MeshOptions& options,
                                              OpenStore open_agent_store) {
  require_master(environment);
  if (environment.has_agent_store) {
    return open_store_of_agent(environment, options.timeout, open_agent_store);
  }
  StoreToken token = read_token(environment);
  MasterAddress master = find_master(environment, options.timeout);
  std::shared_ptr<TokenStoreServer> server;
  if (environment.rank == 0 && environment.rank_0_serves_store()) {
    if (!token.is_secret && options.on_event) {
      options.on_event(
          {.kind = MeshEvent::Kind::kWarning, .text = warning_without_token(master, token)});
    }
    server = std::make_shared<TokenStoreServer>(listen_at_master(master), token.key);
  }
  return std::make_unique<TokenStore>(TokenStore::Parts{.host = master.host,
                                                        .port = master.port,
                                                        .addresses = std::move(master.addresses),
                                                        .token = std::move(token),
                                                        .prefix = prefix_of(environment),
                                                        .timeout = options.timeout,
                                                        .server = std::move(server)});
}

}  // namespace fsdp
