// The peers that each side accepts or refuses, and the error of each refusal.
#include <weft/rpc/security/credentials.h>
#include <weft/rpc/transport/tls_stream.h>

#include "tests/support/errors.h"
#include "tests/support/raw_tls.h"

namespace weft::test::mutual_proof_test {
namespace {

using namespace std::chrono_literals;
using rpc::Credentials;
using rpc::TlsError;
using Request = TestAuthority::Request;

const std::string secret_bytes = "sixteen bytes and some more";

class MutualProof : public ::testing::Test {
 protected:
  Credentials with(const Request& request) const { return Credentials(authority_.credentials_for(request)); }
  Credentials of(const std::string& name) const { return Credentials(authority_.credentials(name)); }

  // Expects that no byte of the application arrived at either side.
  static void expect_refused(const TlsPair& pair) {
    EXPECT_EQ(pair.client->received(), "");
    EXPECT_EQ(pair.server->received(), "");
    EXPECT_TRUE(pair.client->read_error());
    EXPECT_TRUE(pair.server->read_error());
  }
  static void expect_error(const Talker& talker, TlsError error, const std::string& words) {
    EXPECT_EQ(talker.read_error(), error) << talker.read_error().message();
    EXPECT_NE(talker.explained().find(words), std::string::npos) << talker.explained();
  }

  TestAuthority authority_;
};

TEST_F(MutualProof, CertificatesNameBothSides) {
  const auto worker0 = of("worker0"), server = of("server");
  TlsPair pair(worker0, server);
  EXPECT_EQ(pair.client->stream().identity(), "");
  EXPECT_EQ(pair.server->stream().identity(), "");
  EXPECT_TRUE(pair.run().met());
  EXPECT_EQ(pair.client->stream().identity(), "cert:server");
  EXPECT_EQ(pair.server->stream().identity(), "cert:worker0");
  EXPECT_EQ(pair.server->stream().describe(), "tls over memory");
}

TEST_F(MutualProof, AllKindsOfKeys) {
  for (const auto kind : {TestAuthority::KeyKind::p256, TestAuthority::KeyKind::ed25519}) {
    const TestAuthority authority("authority", kind);
    auto request = TestAuthority::agent("server");
    request.key = kind;
    const Credentials both(authority.credentials_for(request));
    EXPECT_TRUE(TlsPair(both, both).run().met());
  }
}

TEST_F(MutualProof, IdentityIsTheUriThenTheDnsNameThenTheCommonName) {
  const auto server = of("server");
  const auto identity_of = [&](const Request& request) {
    const auto client = with(request);
    TlsPair pair(client, server);
    return pair.run().met() ? pair.server->stream().identity()
                            : "(refused: " + pair.server->explained() + ")";
  };
  EXPECT_EQ(identity_of({.common_name = "c", .dns = {"d"}, .uris = {"https://x", "weft://u", "weft://v"}}),
            "cert:u");
  EXPECT_EQ(identity_of({.common_name = "c", .dns = {"D.Example", "e"}, .uris = {"https://x"}}),
            "cert:d.example");
  EXPECT_EQ(identity_of({.common_name = "c", .addresses = {"10.0.0.1"}}), "cert:c");
}

// Names that could be confused with another name, or break a log line. An agent refuses to load such a
// certificate, so testing the verifying side needs a peer without this check. This test covers only loading.
TEST_F(MutualProof, ACertificateWithAMisleadingNameIsNotEvenLoaded) {
  const auto refused = [&](const Request& request) {
    return message_of([&] { return with(request).describe(); }).find("names no agent") != std::string::npos;
  };
  EXPECT_TRUE(refused({.uris = {std::string("weft://admin\0.example", 20)}}));
  EXPECT_TRUE(refused({.dns = {std::string("admin\0.example", 14)}}));
  EXPECT_TRUE(refused({.common_name = "admin\nline"}));
  EXPECT_TRUE(refused({.common_name = "two words"}));
  EXPECT_TRUE(refused({.uris = {"weft://"}}));
  EXPECT_TRUE(refused({.dns = {"good"}, .uris = {"weft://b ad"}}));  // the first candidate counts
  EXPECT_TRUE(refused({}));
}

TEST_F(MutualProof, AClientVerifiesTheServersName) {
  const auto client = of("client");
  const auto met = [&](const Request& request, const rpc::ExpectedPeer& expected) {
    const auto server = with(request);
    TlsPair pair(client, server, expected);
    if (pair.run().met()) return true;
    EXPECT_EQ(pair.client->read_error(), TlsError::certificate_for_another) << pair.client->explained();
    expect_refused(pair);
    return false;
  };
  const Request host{.dns = {"a.example", "*.b.example"}, .addresses = {"10.1.2.3", "fd00::7"}};
  EXPECT_TRUE(met(host, {.host = "a.example"}));
  EXPECT_TRUE(met(host, {.host = "A.EXAMPLE"}));
  EXPECT_TRUE(met(host, {.host = "x.b.example"}));
  EXPECT_TRUE(met(host, {.host = "10.1.2.3"}));
  EXPECT_TRUE(met(host, {.host = "fd00::7"}));
  EXPECT_TRUE(met(host, {.host = "fd00:0::7%eth0"}));
  EXPECT_FALSE(met(host, {.host = "b.example"}));
  EXPECT_FALSE(met(host, {.host = "x.y.b.example"}));
  EXPECT_FALSE(met(host, {.host = "10.1.2.4"}));
  EXPECT_FALSE(met(host, {.host = "fd00::8"}));
  EXPECT_FALSE(met(host, {.host = "example"}));
  // A common name is not accepted as an address.
  EXPECT_FALSE(met({.common_name = "a.example"}, {.host = "a.example"}));
  EXPECT_FALSE(met({.common_name = "a.example", .dns = {"c"}}, {.host = "a.example"}));

  const Request agent{.common_name = "cn", .dns = {"one", "*.two"}, .uris = {"weft://three", "weft://four"}};
  EXPECT_TRUE(met(agent, {.agent = "one"}));
  EXPECT_TRUE(met(agent, {.agent = "ONE"}));
  EXPECT_TRUE(met(agent, {.agent = "three"}));
  EXPECT_TRUE(met(agent, {.agent = "four"}));
  EXPECT_FALSE(met(agent, {.agent = "Three"}));  // the URI's are exact
  EXPECT_FALSE(met(agent, {.agent = "x.two"}));
  EXPECT_FALSE(met(agent, {.agent = "cn"}));
  EXPECT_FALSE(met(agent, {.agent = "weft://three"}));
  // If both names are given, the certificate must have both.
  EXPECT_TRUE(met(agent, {.host = "one", .agent = "three"}));
  EXPECT_FALSE(met(agent, {.host = "one", .agent = "five"}));
  EXPECT_FALSE(met(agent, {.host = "six", .agent = "three"}));
}

TEST_F(MutualProof, AWrongNameIsReportedWithBothNames) {
  const auto client = of("client"), server = with({.dns = {"b"}, .uris = {"weft://c"}});
  TlsPair pair(client, server, {.host = "a"});
  expect_refused(pair.run());
  expect_error(*pair.client, TlsError::certificate_for_another,
               "the peer's certificate is for 'weft://c', 'b', not 'a'");
  expect_error(*pair.server, TlsError::own_certificate_refused,
               "the peer refused this side's certificate: alert 'bad certificate'");
  TlsPair agent(client, server, {.host = "b", .agent = "worker9"});
  expect_refused(agent.run());
  expect_error(*agent.client, TlsError::certificate_for_another, "not 'worker9'");
}

TEST_F(MutualProof, AClientMustNameTheExpectedPeer) {
  const auto client = of("client");
  const auto loop = std::make_shared<ManualLoop>();
  const auto refused = [&](const rpc::ExpectedPeer& expected) {
    return kind_of([&] {
             return rpc::make_tls_stream(PairedStream::make(loop).first, client, expected, loop);
           }) == rpc::ErrorKind::invalid_argument;
  };
  EXPECT_TRUE(refused({}));
  EXPECT_TRUE(refused({.host = ".example"}));  // OpenSSL would take any name below it
  EXPECT_TRUE(refused({.host = "a b"}));
  EXPECT_TRUE(refused({.agent = std::string("a\0b", 3)}));
}

// A peer that is not weft offers a certificate that weft refuses to load.
TEST_F(MutualProof, ACertificateThatIsExpiredOrNotYetValid) {
  const auto ours = of("server");
  for (const bool over : {true, false}) {
    Request request = TestAuthority::agent("late");
    request.begins = over ? -2h : 1h;
    request.ends = over ? -1h : 2h;
    const auto issued = authority_.issue(request);
    const auto error = over ? TlsError::certificate_expired : TlsError::certificate_not_yet_valid;
    const std::string words =
        std::string("the peer's certificate, for 'weft://late', 'late', 'localhost', '127.0.0.1', …, is ") +
        (over ? "expired" : "not yet valid");
    for (const bool server : {true, false}) {
      RawPair pair(ours, {.server = server, .certificate = issued.certificate, .key = issued.key},
                   {.host = "late"});
      pair.run();
      EXPECT_EQ(pair.ours->received(), "");
      expect_error(*pair.ours, error, words);
      EXPECT_TRUE(rpc::is_refusal(pair.ours->read_error()));
      EXPECT_EQ(pair.theirs->received(), "");
      EXPECT_NE(pair.theirs->error().find(over ? "alert certificate expired" : "alert bad certificate"),
                std::string::npos)
          << pair.theirs->error();
    }
  }
}

TEST_F(MutualProof, AnExpiredAuthority) {
  Request request{.common_name = "old", .begins = -2h, .ends = -1h, .authority = true};
  const TestAuthority old(TestAuthority::self_signed(request));
  auto options = authority_.credentials("server");
  options.trust_pem += old.certificate();
  auto late = old.credentials("worker1");
  late.trust_pem = authority_.certificate();
  const Credentials server(options), client(late);
  TlsPair pair(client, server);
  expect_refused(pair.run());
  expect_error(
      *pair.server, TlsError::certificate_expired,
      "the certificate of an authority, on which that of the peer ('weft://worker1', 'worker1', 'localhost', "
      "'127.0.0.1', …) depends, is expired");
}

TEST_F(MutualProof, NoCertificate) {
  const auto ours = of("server");
  RawPair pair(ours, {.server = false});
  pair.run();
  EXPECT_EQ(pair.ours->received(), "");
  expect_error(*pair.ours, TlsError::certificate_missing, "the peer offered no certificate");
  EXPECT_EQ(pair.ours->stream().identity(), "");
  EXPECT_NE(pair.theirs->error().find("certificate required"), std::string::npos) << pair.theirs->error();
}

TEST_F(MutualProof, ACertificateWithAWeakKey) {
  Request request = TestAuthority::agent("weak");
  request.key = TestAuthority::KeyKind::weak_rsa;
  const auto issued = authority_.issue(request);
  const auto ours = of("server");
  RawPair pair(ours, {.server = false, .certificate = issued.certificate, .key = issued.key});
  pair.run();
  EXPECT_EQ(pair.ours->received(), "");
  expect_error(*pair.ours, TlsError::certificate_unfit,
               "is not valid for this use: EE certificate key too weak");
}

TEST_F(MutualProof, AValidCertificateWithoutAName) {
  const auto ours = of("server");
  for (const Request& request :
       std::vector<Request>{{}, {.uris = {std::string("weft://admin\0.example", 20)}}}) {
    const auto issued = authority_.issue(request);
    RawPair pair(ours, {.server = false, .certificate = issued.certificate, .key = issued.key});
    pair.run();
    EXPECT_EQ(pair.ours->received(), "");
    EXPECT_EQ(pair.ours->stream().identity(), "");
    expect_error(*pair.ours, TlsError::certificate_unfit, "the peer's certificate names no agent");
  }
}

TEST_F(MutualProof, TLS12IsRefusedOnBothSides) {
  const auto ours = of("server");
  const auto issued = authority_.issue(TestAuthority::agent("late"));
  for (const bool server : {true, false}) {
    RawPair pair(
        ours,
        {.server = server, .highest = TLS1_2_VERSION, .certificate = issued.certificate, .key = issued.key},
        {.host = "late"});
    pair.run();
    EXPECT_EQ(pair.ours->received(), "");
    expect_error(*pair.ours, TlsError::old_version, "the peer does not speak TLS 1.3");
    EXPECT_NE(pair.theirs->error(), "");
  }
}

TEST_F(MutualProof, AnotherApplicationOfTLS) {
  const auto ours = of("server");
  const auto issued = authority_.issue(TestAuthority::agent("late"));
  for (const bool server : {true, false}) {
    for (const std::string application : {"", "http/1.1"}) {
      RawPair pair(ours,
                   {.server = server,
                    .application = application,
                    .certificate = issued.certificate,
                    .key = issued.key},
                   {.host = "late"});
      pair.run();
      EXPECT_EQ(pair.ours->received(), "");
      EXPECT_EQ(pair.ours->stream().identity(), "");
      expect_error(*pair.ours, TlsError::no_weft, "the peer speaks TLS, but not weft");
    }
  }
}

TEST_F(MutualProof, AValidCertificateSufficesForAnotherImplementation) {
  const auto ours = of("server");
  const auto issued = authority_.issue(TestAuthority::agent("late"));
  for (const bool server : {true, false}) {
    RawPair pair(ours, {.server = server, .certificate = issued.certificate, .key = issued.key},
                 {.host = "late"});
    pair.run();
    EXPECT_EQ(pair.ours->received(), RawTls::message) << pair.ours->explained();
    EXPECT_EQ(pair.theirs->received(), RawPair::message);
  }
}

TEST_F(MutualProof, AnUntrustedAuthority) {
  const TestAuthority stranger("stranger");
  const Credentials ours(authority_.credentials("server")), theirs(stranger.credentials("server"));
  auto blind = stranger.credentials("server");  // trusts our authority, which does not trust its authority
  blind.trust_pem = authority_.certificate();
  const Credentials theirs_blind(blind);

  TlsPair client(theirs_blind, ours);
  expect_refused(client.run());
  expect_error(*client.server, TlsError::certificate_untrusted, "is from no authority that this side trusts");
  expect_error(*client.client, TlsError::own_certificate_untrusted, "does not trust its authority");

  TlsPair server(ours, theirs_blind);
  expect_refused(server.run());
  expect_error(*server.client, TlsError::certificate_untrusted, "is from no authority that this side trusts");
  expect_error(*server.server, TlsError::own_certificate_untrusted, "does not trust its authority");
  expect_refused(TlsPair(theirs, ours).run());
}

TEST_F(MutualProof, AnAuthorityOfTheSameName) {
  const TestAuthority impostor;  // has the same name as authority_
  auto options = impostor.credentials("server");
  options.trust_pem = authority_.certificate();
  const Credentials theirs(options), ours(authority_.credentials("server"));
  TlsPair pair(theirs, ours);
  expect_refused(pair.run());
  expect_error(*pair.server, TlsError::certificate_untrusted, "from no authority that this side trusts");
}

TEST_F(MutualProof, ASelfSignedCertificate) {
  const auto issued = TestAuthority::self_signed(TestAuthority::agent("self"));
  const Credentials self(
      {.certificate_pem = issued.certificate, .key_pem = issued.key, .trust_pem = authority_.certificate()});
  const auto server = of("server");
  TlsPair pair(self, server);
  expect_refused(pair.run());
  expect_error(*pair.server, TlsError::certificate_untrusted, "is self-signed, and from no authority");
}

TEST_F(MutualProof, ACertificateForAnotherUse) {
  auto only_server = TestAuthority::agent("worker1"), only_client = TestAuthority::agent("server");
  only_server.for_clients = only_client.for_servers = false;
  const auto ours = of("server"), as_client = with(only_server), as_server = with(only_client);
  TlsPair client(as_client, ours);
  expect_refused(client.run());
  expect_error(*client.server, TlsError::certificate_unfit, "is not valid for this use");
  TlsPair server(ours, as_server);
  expect_refused(server.run());
  expect_error(*server.client, TlsError::certificate_unfit, "is not valid for this use");
}

TEST_F(MutualProof, AnAuthorityBelowTheTrustedOne) {
  const TestAuthority below(authority_.issue({.common_name = "below", .authority = true}));
  auto chained = below.credentials("worker1");
  chained.certificate_pem += below.certificate();
  chained.trust_pem = authority_.certificate();
  const Credentials client(chained);
  const auto server = of("server");
  TlsPair pair(client, server);
  EXPECT_TRUE(pair.run().met()) << pair.server->explained();
  EXPECT_EQ(pair.server->stream().identity(), "cert:worker1");

  // Without the intermediate certificate the chain is incomplete. The certificate of an agent is not one of
  // an authority.
  chained.certificate_pem = chained.certificate_pem.substr(0, chained.certificate_pem.find("-----END") + 26);
  const Credentials cut(chained);
  TlsPair lost(cut, server);
  expect_refused(lost.run());
  expect_error(*lost.server, TlsError::certificate_untrusted, "no authority that this side trusts");

  const TestAuthority pretended(authority_.issue(TestAuthority::agent("worker1")));
  auto forged = pretended.credentials("admin");
  forged.certificate_pem += pretended.certificate();
  forged.trust_pem = authority_.certificate();
  const Credentials forger(forged);
  TlsPair forgery(forger, server);
  expect_refused(forgery.run());
  EXPECT_TRUE(rpc::is_refusal(forgery.server->read_error())) << forgery.server->explained();
}

TEST_F(MutualProof, OneAuthorityBelowIsTrustedWithoutItsRoot) {
  const TestAuthority below(authority_.issue({.common_name = "below", .authority = true}));
  const Credentials both(below.credentials("server")), outside(authority_.credentials("server"));
  EXPECT_TRUE(TlsPair(both, both).run().met());
  expect_refused(TlsPair(outside, both).run());
}

// --- Secrets ---

TEST_F(MutualProof, ASecretNamesTheJob) {
  const Credentials both(secret_options("job7", secret_bytes));
  TlsPair pair(both, both);
  EXPECT_TRUE(pair.run().met()) << pair.client->explained();
  EXPECT_EQ(pair.client->stream().identity(), "psk:job7");
  EXPECT_EQ(pair.server->stream().identity(), "psk:job7");
}

TEST_F(MutualProof, AnotherSecretOfTheSameId) {
  const Credentials client(secret_options("job7", secret_bytes)),
      server(secret_options("job7", secret_bytes + "!"));
  TlsPair pair(client, server);
  expect_refused(pair.run());
  expect_error(*pair.server, TlsError::secret_wrong,
               "the peer's pre-shared secret 'job7' differs from the secret of this side");
  expect_error(
      *pair.client, TlsError::own_secret_refused,
      "the peer refused this side's pre-shared secret: it is unknown to the peer, or differs for that id: "
      "'job7'");
}

TEST_F(MutualProof, AnUnknownSecret) {
  const Credentials client(secret_options("job8", secret_bytes)),
      server(secret_options("job7", secret_bytes));
  TlsPair pair(client, server);
  expect_refused(pair.run());
  expect_error(*pair.server, TlsError::secret_unknown, "unknown pre-shared secret 'job8'");
  expect_error(*pair.client, TlsError::own_secret_refused, "'job8'");
  EXPECT_TRUE(rpc::is_refusal(pair.server->read_error()));
  EXPECT_TRUE(rpc::is_refusal(pair.client->read_error()));
}

TEST_F(MutualProof, TwoSecretsHoldAtOnce) {
  const std::string other_bytes = "another secret of 25 byte";
  const Credentials old(secret_options("old", secret_bytes)), fresh(secret_options("new", other_bytes)),
      both({.secrets = {{.id = "new", .bytes = other_bytes}, {.id = "old", .bytes = secret_bytes}}});
  const auto identity = [](const Credentials& client, const Credentials& server) {
    TlsPair pair(client, server);
    return pair.run().met() ? pair.server->stream().identity() : "(refused)";
  };
  EXPECT_EQ(identity(old, both), "psk:old");
  EXPECT_EQ(identity(fresh, both), "psk:new");
  EXPECT_EQ(identity(both, fresh), "psk:new");  // the first is offered
  EXPECT_EQ(identity(both, old), "(refused)");
  EXPECT_EQ(identity(both, both), "psk:new");
  EXPECT_EQ(identity(old, fresh), "(refused)");
}

TEST_F(MutualProof, ASecretAgainstACertificate) {
  const Credentials secret(secret_options("job7", secret_bytes));
  const auto certificate = of("server");
  TlsPair client(secret, certificate);
  expect_refused(client.run());
  expect_error(*client.client, TlsError::certificate_untrusted,
               "has a certificate, but this side has only a pre-shared secret");
  EXPECT_EQ(client.server->read_error(), TlsError::own_certificate_untrusted);

  TlsPair server(certificate, secret);
  expect_refused(server.run());
  expect_error(*server.server, TlsError::secret_missing, "the peer offered no pre-shared secret");
  expect_error(*server.client, TlsError::refused, "the peer refused the TLS handshake");
}

TEST_F(MutualProof, APeerWithBothIsAcceptedByEither) {
  auto options = authority_.credentials("server");
  options.secrets = {{.id = "job7", .bytes = secret_bytes}};
  const Credentials both(options), secret(secret_options("job7", secret_bytes)),
      other_secret(secret_options("job8", secret_bytes));
  const auto certificate = of("server");
  const auto identity = [](const Credentials& client, const Credentials& server) {
    TlsPair pair(client, server);
    return pair.run().met() ? pair.server->stream().identity()
                            : "(refused: " + pair.server->explained() + ")";
  };
  EXPECT_EQ(identity(secret, both), "psk:job7");
  EXPECT_EQ(identity(certificate, both), "cert:server");
  EXPECT_EQ(identity(both, secret), "psk:job7");
  EXPECT_EQ(identity(both, certificate), "cert:server");
  EXPECT_EQ(identity(both, both), "psk:job7");
  EXPECT_EQ(
      identity(other_secret, both),
      "(refused: unknown pre-shared secret 'job8', and the peer did not continue with certificates: alert "
      "'unknown CA')");
}

}  // namespace
}  // namespace weft::test::mutual_proof_test
