// Agents with credentials and permissions: which peers are accepted, and which methods they may call.
#include <weft/rpc/testing/test_authority.h>

#include <asio/ip/tcp.hpp>

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "tests/support/cluster.h"
#include "tests/support/shared_loop.h"
#include "tests/support/tls_socket.h"

namespace weft::rpc::security_test {
namespace {

using namespace test;

struct Vault {
  std::string open(std::string what) {
    ++opened;
    return what + " is open";
  }
  std::string who(CallContext& call) {
    ++opened;
    return call.peer().identity;
  }
  std::atomic<int> opened{0};
  using Service = rpc::Service<"vault", Method<"open", &Vault::open>, Method<"who", &Vault::who>>;
};

CredentialOptions secret(const std::string& bytes, const std::string& id = "job7") {
  CredentialOptions options;
  options.secrets = {{id, bytes, {}}};
  return options;
}

class SecurityTest : public testing::Test {
 protected:
  // Creates an agent that listens on TCP, with these credentials. nullopt: without credentials.
  void make(const std::string& name, std::optional<CredentialOptions> credentials,
            const std::function<void(AgentOptions&)>& adjust = {}) {
    cluster_ = cluster_ != nullptr ? std::move(cluster_)
                                   : std::make_unique<Cluster>(Cluster::Options{
                                         .tcp = true, .adjust = [this](AgentOptions& o) { adjust_(o); }});
    adjust_ = [&](AgentOptions& options) {
      if (credentials) options.credentials = credentials_[name] = std::make_shared<Credentials>(*credentials);
      if (adjust) adjust(options);
    };
    cluster_->add(name);
  }
  Agent& agent(const std::string& name) { return (*cluster_)[name]; }
  void serve(const std::string& name) { agent(name).serve(vault_); }

  // Calls one agent from another. Returns the result or the error.
  Result<std::string> call(const std::string& from, const std::string& to) {
    return capture(
        [&] { return got(agent(from).connect(agent(to).addresses().front()).call<&Vault::open>("it")); });
  }
  void expect_refused(const std::string& from, const std::string& to, ErrorKind kind,
                      const std::string& words) {
    expect_error([&] { return call(from, to).get(); }, kind, Execution::not_sent, words);
    EXPECT_EQ(vault_->opened, 0) << "no handler runs";
  }

  // The refusal is logged, too. The server may detect it after the client.
  void expect_counted(const std::string& server, const std::string& words) {
    test::eventually("the refusal is counted",
                     [&] { return agent(server).counts().connections_refused == 1; });
    test::eventually("and logged", [&] { return !cluster_->logged(words).empty(); });
  }

  std::function<void(AgentOptions&)> adjust_;
  std::shared_ptr<Vault> vault_ = std::make_shared<Vault>();
  std::map<std::string, std::shared_ptr<Credentials>> credentials_;
  std::unique_ptr<Cluster> cluster_;
};

TEST_F(SecurityTest, CertificatesOfOneAuthorityAreAccepted) {
  TestAuthority authority;
  make("vault", authority.credentials("vault"));
  make("anna", authority.credentials("anna"));
  serve("vault");
  EXPECT_EQ(call("anna", "vault").get(), "it is open");
  const Peer peer = agent("anna").connect(agent("vault").addresses().front());
  EXPECT_EQ(got(peer.call<&Vault::who>()), "cert:anna");
  EXPECT_EQ(agent("vault").counts().connections_refused, 0U);
}

TEST_F(SecurityTest, ASharedSecretIsAccepted) {
  make("vault", secret("a secret of the job, long enough"));
  make("anna", secret("a secret of the job, long enough"));
  serve("vault");
  EXPECT_EQ(call("anna", "vault").get(), "it is open");
  const Peer peer = agent("anna").connect(agent("vault").addresses().front());
  EXPECT_EQ(got(peer.call<&Vault::who>()), "psk:job7");
}

TEST_F(SecurityTest, AWrongSecretIsRefusedLoggedAndCounted) {
  make("vault", secret("a secret of the job, long enough"));
  make("anna", secret("another secret that is long too"));
  serve("vault");
  expect_refused("anna", "vault", ErrorKind::permission_denied, "secret");
  expect_counted("vault", "secret");
  EXPECT_EQ(agent("vault").counts().connections_made, 0U);
}

TEST_F(SecurityTest, ACertificateOfAnotherAuthorityIsRefused) {
  TestAuthority ours, theirs{"another authority"};
  auto forged = theirs.credentials("anna");
  forged.trust_pem = ours.certificate();
  make("vault", ours.credentials("vault"));
  make("anna", forged);
  serve("vault");
  const auto result = call("anna", "vault");
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(vault_->opened, 0);
  expect_counted("vault", "authority");
}

TEST_F(SecurityTest, APeerWithoutTlsIsRefused) {
  TestAuthority authority;
  make("vault", authority.credentials("vault"));
  make("anna", std::nullopt,
       [](AgentOptions& options) { options.handshake_timeout = std::chrono::seconds{5}; });
  serve("vault");
  expect_error([&] { return call("anna", "vault").get(); }, ErrorKind::permission_denied,
               "the peer speaks TLS");
  EXPECT_EQ(vault_->opened, 0);
  expect_counted("vault", "does not speak TLS");
  EXPECT_EQ(agent("vault").counts().connections_made, 0U);
  EXPECT_EQ(agent("vault").counts().calls_served, 0U);
}

// The clients are not weft, which would not load an expired certificate and would not connect without one.
TEST_F(SecurityTest, AnExpiredCertificateOrNoneIsRefusedLoggedAndCounted) {
  TestAuthority authority;
  make("vault", authority.credentials("vault"));
  serve("vault");
  auto late = TestAuthority::agent("anna");
  late.begins = -std::chrono::hours{2};
  late.ends = -std::chrono::hours{1};
  const auto knock = [&](const TestAuthority::Issued& who) {
    test::TlsSocket socket(agent("vault").addresses().front(), who);
    auto bytes = bytes_of(OutgoingMessage::hello({.name = "anna", .incarnation = 7}));
    auto message = OutgoingMessage::request(1);
    Codec<std::string>::encode(message->argument(0), "it");
    const auto request = test::bytes_of(message->seal_request({name_hash("vault.open"), 1, 0}, 1, 0));
    bytes.insert(bytes.end(), request.begin(), request.end());
    socket.send(bytes);
    while (const auto frame = socket.next()) EXPECT_NE(frame->prefix.kind, FrameKind::reply);
  };
  knock(authority.issue(late));
  expect_counted("vault", "expired");
  knock({});
  test::eventually("this one too", [&] { return agent("vault").counts().connections_refused == 2; });
  test::eventually("and logged", [&] { return !cluster_->logged("offered no certificate").empty(); });
  EXPECT_EQ(vault_->opened, 0);
  EXPECT_EQ(agent("vault").counts().calls_served, 0U);
  EXPECT_EQ(agent("vault").counts().connections_made, 0U);
}

TEST_F(SecurityTest, ASilentPeerIsClosedAfterTheHandshakeTimeout) {
  TestAuthority authority;
  const auto soon = [](AgentOptions& options) { options.handshake_timeout = std::chrono::milliseconds{50}; };
  make("plain", std::nullopt, soon);
  make("vault", authority.credentials("vault"), soon);
  for (const std::string name : {"plain", "vault"}) {  // before TLS, too
    agent(name).serve(vault_);
    probe::Socket silent = probe::Socket::connected(agent(name).addresses().front());
    std::byte bytes[4096];
    while (silent.receive(bytes) != 0) {
    }
    test::eventually("it is counted", [&] { return agent(name).counts().connections_refused == 1; });
    EXPECT_EQ(agent(name).counts().connections_made, 0U);
  }
  test::eventually("and logged",
                   [&] { return cluster_->logged("the peer did not finish the handshake").size() == 2; });
  EXPECT_EQ(vault_->opened, 0);
}

TEST_F(SecurityTest, APeerWithoutCredentialsIsRefused) {
  TestAuthority authority;
  make("vault", std::nullopt);
  make("anna", authority.credentials("anna"));
  serve("vault");
  expect_refused("anna", "vault", ErrorKind::permission_denied, "the peer does not speak TLS");
  expect_counted("vault", "the peer speaks TLS");
}

// An address that another agent published, in a hello or in the store, does not prove which agent listens
// there.
class ImpostorTest : public SecurityTest {
 protected:
  ImpostorTest() {
    char name[] = "/tmp/weft-impostor-XXXXXX";
    folder_ = ::mkdtemp(name);
  }
  ~ImpostorTest() override {
    cluster_.reset();
    std::filesystem::remove_all(folder_);
  }
  // A call of "bert" to the agent at this address, which is published as the address of "vault".
  Result<std::string> call_vault_at(const std::string& address) {
    Agent& bert = agent("bert");
    bert.core()->routes().to_name("vault", {address});
    return capture([&] { return got(bert.peer("vault").call<&Vault::who>()); });
  }
  void listen_as_vault(const std::string& address, std::optional<CredentialOptions> credentials) {
    make("vault", std::move(credentials), [&](AgentOptions& options) { options.listen = {address}; });
    serve("vault");
  }

  std::filesystem::path folder_;
  TestAuthority authority_;
};

TEST_F(ImpostorTest, IsRefusedOverEveryTransportOfTheHost) {
  for (const std::string scheme : {"unix", "shm"}) {
    const std::string address = scheme + "://" + (folder_ / scheme).string();
    for (const bool is_member : {false, true}) {
      cluster_.reset();
      const auto of_mallory = authority_.credentials("mallory");
      listen_as_vault(address, is_member ? std::optional(of_mallory) : std::nullopt);
      make("bert", authority_.credentials("bert"));
      SCOPED_TRACE(address);
      expect_error([&] { return call_vault_at(address).get(); }, ErrorKind::permission_denied,
                   is_member ? "mallory" : "TLS");
      EXPECT_EQ(vault_->opened, 0);
      EXPECT_EQ(agent("vault").counts().connections_made, 0U) << "it is not even told a Hello";
    }
  }
}

TEST_F(ImpostorTest, AnAgentThatProvesTheNameIsReachedOverThoseTransports) {
  for (const std::string scheme : {"unix", "shm"}) {
    const std::string address = scheme + "://" + (folder_ / scheme).string();
    cluster_.reset();
    listen_as_vault(address, authority_.credentials("vault"));
    make("bert", authority_.credentials("bert"));
    EXPECT_EQ(call_vault_at(address).get(), "cert:bert");
    make("cora", authority_.credentials("cora"));
    EXPECT_EQ(got(agent("cora").connect(address).call<&Vault::who>()), "cert:cora") << "by address, too";
  }
}

TEST_F(ImpostorTest, IsNotReachedByAnUncheckedTransport) {
  class Unchecked final : public Transport {
   public:
    std::string_view scheme() const override { return "inproc"; }
    void connect(const Address&, std::shared_ptr<Loop>, const ConnectionOptions&, Connected) override {
      ADD_FAILURE() << "an agent with credentials dials over a transport that does not check them";
    }
    std::unique_ptr<Listener> listen(const Address&, PickLoop, const ConnectionOptions&, bool,
                                     Accepted) override {
      return nullptr;
    }
  };
  make("bert", authority_.credentials("bert"),
       [](AgentOptions& options) { options.in_process = std::make_shared<Unchecked>(); });
  expect_error([&] { return call_vault_at("inproc://vault").get(); }, ErrorKind::permission_denied,
               Execution::not_sent);
}

TEST_F(SecurityTest, TheCertificateMustBeForTheHostThatWasDialled) {
  TestAuthority authority;
  TestAuthority::Request elsewhere;
  elsewhere.common_name = "vault";
  elsewhere.uris = {"weft://vault"};
  elsewhere.dns = {"vault.example"};  // and not 127.0.0.1
  make("vault", authority.credentials_for(elsewhere));
  make("anna", authority.credentials("anna"));
  serve("vault");
  expect_refused("anna", "vault", ErrorKind::permission_denied, "127.0.0.1");
}

TEST_F(SecurityTest, NoAgentMayUseTheNameOfAnother) {
  TestAuthority authority;
  make("vault", authority.credentials("vault"));
  make("bert", authority.credentials("anna"));  // anna's certificate
  serve("vault");
  expect_refused("bert", "vault", ErrorKind::permission_denied, "the certificate is for 'anna'");
  expect_counted("vault", "the certificate is for 'anna'");
}

TEST_F(SecurityTest, AnAgentWithCredentialsMayListenBeyondItsHost) {
  TestAuthority authority;
  AgentOptions options{.name = "open", .listen = {"tcp://0.0.0.0:0"}};
  EXPECT_EQ(kind_of([&] { return Agent(options).addresses(); }), ErrorKind::permission_denied);
  options.credentials = std::make_shared<Credentials>(authority.credentials("open"));
  EXPECT_EQ(Agent(options).addresses().size(), 1U);
}

TEST_F(SecurityTest, ReloadedSecretsApplyToNewConnectionsAndDropNoCall) {
  CredentialOptions old = secret("the old secret, which leaked out", "old");
  make("vault", old);
  make("anna", old);
  serve("vault");
  const Peer anna = agent("anna").connect(agent("vault").addresses().front());
  EXPECT_EQ(got(anna.call<&Vault::who>()), "psk:old");

  CredentialOptions both = old;
  both.secrets.insert(both.secrets.begin(), {"new", "the new secret, that nobody has", {}});
  credentials_["vault"]->replace(both);
  EXPECT_EQ(got(anna.call<&Vault::who>()), "psk:old") << "a connection keeps what it began with";
  make("bert", secret("the new secret, that nobody has", "new"));
  EXPECT_EQ(got(agent("bert").connect(agent("vault").addresses().front()).call<&Vault::who>()), "psk:new");

  credentials_["vault"]->replace(secret("the new secret, that nobody has", "new"));
  make("cora", old);
  vault_->opened = 0;
  expect_refused("cora", "vault", ErrorKind::permission_denied, "secret");
  EXPECT_EQ(got(anna.call<&Vault::who>()), "psk:old");
}

// As over Unix sockets and shared memory, so that the identity does not depend on the way.
TEST_F(SecurityTest, TheKernelProvesTheUserOverLoopback) {
  const std::string user = "uid:" + std::to_string(::geteuid());
  const auto only_user = [&](AgentOptions& options) {
    options.permissions = Permissions::parse("allow " + user + " vault.*");
  };
  make("vault", std::nullopt, only_user);
  serve("vault");
  make("anna", std::nullopt, only_user);
  serve("anna");
  EXPECT_EQ(got(agent("anna").connect(agent("vault").addresses().front()).call<&Vault::who>()), user);
  // The other direction of the same connection.
  EXPECT_EQ(got(agent("vault").peer("anna").call<&Vault::who>()), user);
  EXPECT_EQ(agent("vault").counts().connections, 1U);
  make("near", std::nullopt, [](AgentOptions& options) { options.same_host = true; });
  EXPECT_EQ(got(agent("near").connect(agent("vault").addresses().front()).call<&Vault::who>()), user);
}

TEST_F(SecurityTest, TheKernelProvesTheUserOverIpv6) {
  if (!is_own_address("::1")) GTEST_SKIP() << "this machine has no IPv6 on loopback";
  make("vault", std::nullopt, [](AgentOptions& options) { options.listen = {"tcp://[::1]:0"}; });
  serve("vault");
  make("anna", std::nullopt);
  EXPECT_EQ(got(agent("anna").connect(agent("vault").addresses().front()).call<&Vault::who>()),
            "uid:" + std::to_string(::geteuid()));
}

// No process has its socket any more when its hello is read. A kernel may then report user 0.
TEST_F(SecurityTest, APeerThatClosesAtOnceIsNotAdmitted) {
  make("vault", std::nullopt, [](AgentOptions& options) { options.same_user = true; });
  serve("vault");
  for (const bool asks : {false, true}) {
    const test::HeldLoop held(agent("vault"));
    auto socket = probe::Socket::connected(agent("vault").addresses().front());
    socket.send(probe::hello("ghost"));
    if (asks) socket.send(probe::sealed(probe::request(std::string("it")), "vault.open", 1));
  }
  test::eventually("both have ended", [&] { return cluster_->logged("closed: ").size() == 2; });
  EXPECT_EQ(vault_->opened, 0);
  EXPECT_EQ(agent("vault").counts().connections_made, 0U);
  EXPECT_EQ(agent("vault").counts().connections_refused, 0U) << "a peer that dies is not an intruder";
}

TEST_F(SecurityTest, CredentialsReplaceTheCheckOfTheUser) {
  TestAuthority authority;
  const auto strict = [](AgentOptions& options) { options.same_user = true; };
  make("vault", authority.credentials("vault"), strict);
  make("anna", authority.credentials("anna"), strict);
  serve("vault");
  EXPECT_EQ(call("anna", "vault").get(), "it is open");
}

TEST_F(SecurityTest, PermissionsStateWhichIdentityMayCallWhichMethod) {
  TestAuthority authority;
  make("vault", authority.credentials("vault"), [](AgentOptions& options) {
    options.permissions =
        Permissions::parse("allow cert:anna vault.*\nallow cert:* vault.who\nallow * weft.*\n");
  });
  make("anna", authority.credentials("anna"));
  make("bert", authority.credentials("bert"));
  serve("vault");
  const auto begin = Clock::now();
  // Ten lines of a topic in ten seconds, and a line that counts the rest. On a slow machine the test takes
  // several periods of ten seconds.
  const auto expect_ten = [&](const std::vector<Cluster::LogLine>& lines) {
    const auto warnings = std::count_if(lines.begin(), lines.end(),
                                        [](const auto& line) { return line.level == LogLevel::warning; });
    const auto windows = 1 + (Clock::now() - begin) / std::chrono::seconds{10};
    EXPECT_GE(warnings, 10) << "of lines that a peer repeats";
    EXPECT_LE(warnings, 10 * windows);
  };
  expect_refused("bert", "vault", ErrorKind::permission_denied, "cert:bert may not call this");
  EXPECT_EQ(agent("vault").counts().calls_denied, 1U);
  EXPECT_EQ(cluster_->logged("cert:bert").size(), 1U);
  for (int i = 0; i < 20; ++i) EXPECT_FALSE(call("bert", "vault").ok());
  const auto lines = cluster_->logged("may not call");
  EXPECT_EQ(lines.size(), 21U);
  expect_ten(lines);
  const Peer bert = agent("bert").connect(agent("vault").addresses().front());
  for (int i = 0; i < 20; ++i) bert.notify<&Vault::open>("it");
  test::eventually("all are dropped", [&] { return cluster_->logged("was dropped").size() >= 20; });
  const auto dropped = cluster_->logged("was dropped");
  EXPECT_EQ(dropped.size(), 20U);
  expect_ten(dropped);
  EXPECT_EQ(call("anna", "vault").get(), "it is open");
  EXPECT_EQ(got(agent("bert").connect(agent("vault").addresses().front()).call<&Vault::who>()), "cert:bert");
}

// A transport that authenticates no peer, as a program may provide one.
class Unchecked final : public Transport {
 public:
  std::string_view scheme() const override { return "unix"; }
  void connect(const Address&, std::shared_ptr<Loop>, const ConnectionOptions&, Connected done) override {
    done(std::make_exception_ptr(Error(ErrorKind::unavailable, "nobody listens")));
  }
  std::unique_ptr<Listener> listen(const Address&, PickLoop, const ConnectionOptions&, bool,
                                   Accepted) override {
    return std::make_unique<Listener>(Address::parse("unix:///nowhere"), [] {});
  }
};

TEST(SecurityOfTransports, AnAgentWithCredentialsListensOnlyWhereTheyAreChecked) {
  test::SharedLoop loop;
  const auto listen = [&](std::shared_ptr<Credentials> credentials) {
    std::string refusal = "(none)";
    loop.run([&] {
      refusal = message_of([&] {
        Agent agent(loop.runtime(std::make_shared<Unchecked>()),
                    {.name = "vault", .listen = {"unix:///nowhere"}, .credentials = credentials});
        return 0;
      });
    });
    return refusal;
  };
  EXPECT_EQ(listen(nullptr), "(no error)");
  EXPECT_EQ(
      listen(std::make_shared<Credentials>(secret("a secret of the job, long enough"))),
      "listening on unix:///nowhere would admit peers without credentials: this agent has credentials, but "
      "transport 'unix' does not check them");
}

TEST_F(SecurityTest, SilentConnectionsAreLimited) {
  make("vault", std::nullopt, [](AgentOptions& options) { options.max_handshakes = 4; });
  make("anna", std::nullopt);
  serve("vault");
  const auto address = Address::parse(agent("vault").addresses().front());
  asio::io_context context;
  std::vector<asio::ip::tcp::socket> silent;
  const asio::ip::tcp::endpoint where(asio::ip::make_address(address.host),
                                      static_cast<unsigned short>(std::stoi(address.port)));
  for (int i = 0; i < 6; ++i) silent.emplace_back(context).connect(where);
  // The agent closes the oldest connections to make room.
  std::byte byte[4096];
  asio::error_code error;
  for (std::size_t i = 0; i < 2; ++i) {
    error = {};
    while (!error) silent[i].read_some(asio::buffer(byte), error);
  }
  test::eventually("both are counted", [&] { return agent("vault").counts().connections_refused == 2; });
  EXPECT_TRUE(call("anna", "vault").ok()) << "a client that sends its handshake is accepted";
}

}  // namespace
}  // namespace weft::rpc::security_test
